"""The embedded experiments. Finding and listing them imports nothing slow."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable

from fedhca2.strict_yaml import read_yaml

SCHEMA = "schema.json"  # of experiments, as `fedhca2 config schema` prints it
FOLDER = resources.files("fedhca2") / "configs"


@dataclass(frozen=True)
class Listing:
    """An embedded experiment: its name for `fedhca2 run`, its title, and the tables and figures it belongs to."""

    name: str
    title: str
    belongs_to: tuple[str, ...]


def embedded_experiments() -> list[Listing]:
    """List the experiments that come with the package."""
    listings = []
    for name, file in sorted(_files().items()):
        values = read_yaml(file)
        listings.append(Listing(name, values.get("title", ""), tuple(values.get("belongs_to", ()))))
    return listings


def embedded_names() -> list[str]:
    """The names of the experiments that come with the package."""
    return sorted(_files())


def embedded_file(name: str) -> Traversable | None:
    """Return the file of an embedded experiment, or None if no experiment has this name."""
    return _files().get(name)


@cache
def _files() -> dict[str, Traversable]:
    """The files of all of them, by name."""
    return dict(_walk(FOLDER, ""))


def _walk(folder: Traversable, prefix: str) -> Iterator[tuple[str, Traversable]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _walk(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(".yaml"):
            yield prefix + entry.name.removesuffix(".yaml"), entry
