"""What a site says of itself, in a file of its own."""

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from fedhca2.clients import Privacy
from fedhca2.config import Config
from fedhca2.experiment import ConfigError
from fedhca2.experiment.errors import describe
from fedhca2.strict_yaml import YamlError, read_yaml


class SiteConfig(Config):
    """One site: who it is in the federation, and where its things are. No server can change any of it."""

    client: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", description="its name in the experiment")]
    tasks: Annotated[tuple[str, ...], Field(min_length=1, description="what it has labels for")]
    state: Annotated[Path, Field(description="folder for its models and its state between rounds")]
    data: Annotated[
        dict[str, Any],
        Field(
            default_factory=dict,
            description="its data set: root above all, and partition if not all images are to be used",
        ),
    ]
    weights: Annotated[Path | None, Field(description="the encoder's first values, where they are a file")] = None
    privacy: Annotated[Privacy | None, Field(description="its own bounds, in place of the experiment's")] = None
    own_methods: Annotated[bool, Field(description="whether the server may name a method outside the package")] = False
    device: Annotated[str, Field(description="cuda, cpu, …; auto: a GPU where there is one")] = "auto"

    @classmethod
    def load(cls, path: Path) -> "SiteConfig":
        """A site from its YAML file; relative paths are relative to the file."""
        try:
            values = read_yaml(path)
        except YamlError as error:
            raise ConfigError([f"{path}: {error}"]) from None
        if not isinstance(values, dict):
            raise ConfigError([f"{path}: should be a mapping of keys to values, found {values!r:.200}"])
        try:
            site = cls.model_validate(values)
        except ValidationError as error:
            raise ConfigError([f"{path}: {line}" for line in describe(error)]) from None
        folder = path.resolve().parent
        data = {key: str(folder / value) if key == "root" else value for key, value in site.data.items()}
        weights = site.weights and folder / site.weights
        return site.model_copy(update={"state": folder / site.state, "data": data, "weights": weights})
