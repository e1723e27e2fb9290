"""A site's own settings, from its own file, and its ledger of the noised updates and scores that have left it."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from filelock import FileLock
from pydantic import Field, ValidationError, field_validator, model_validator
from torch import Tensor

from fedhca2.clients import Privacy
from fedhca2.clients.privacy import DELTA, combined, epsilon
from fedhca2.config import Config
from fedhca2.data.config import path_settings
from fedhca2.data.own import settings_class
from fedhca2.errors import UserError, list_faults
from fedhca2.imports import is_import_path, located
from fedhca2.methods import METHODS
from fedhca2.params import Slot
from fedhca2.strict_yaml import YamlError, read_yaml
from fedhca2.tasks.built_in import DeclaredTask
from fedhca2.whole_files import write_whole

SPENT = "the privacy budget is spent"
Kind = Literal["update", "scores"]


class SiteScores(Config):
    """What a site reports of its models' scores."""

    send: Annotated[
        Literal["all", "final", "none"], Field(description="whenever asked, after the last round, or never")
    ] = "final"
    noise: Annotated[
        float,
        Field(
            ge=0, description="standard deviation on each score, in its range times the root of their number; 0: exact"
        ),
    ] = 0.0

    @model_validator(mode="after")
    def _noise_hides_something(self) -> "SiteScores":
        Privacy(clip=1.0, noise=self.noise)
        return self


class SitePrivacy(Privacy):
    """How a site protects its updates, and how much all of them together may reveal, in all runs."""

    epsilon: Annotated[
        float | None, Field(gt=0, description="the ε at which it stops taking part; no limit by default")
    ] = None
    delta: Annotated[float, Field(gt=0, lt=1, description="the δ for its ε")] = DELTA

    @model_validator(mode="after")
    def _one_update_is_within_the_budget(self) -> "SitePrivacy":
        if self.epsilon is None:
            return self
        if not self.noise:
            raise ValueError("epsilon: expected noise with it, since every update without noise exceeds it, got none")
        if (least := epsilon(self.noise, delta=self.delta)) > self.epsilon:
            expected = f"at least {least:.4g}, the cost of one update with noise {self.noise:g}"
            raise ValueError(f"epsilon: expected {expected}, got {self.epsilon:g}")
        return self


class SiteSums(Config):
    """Which sums of secure aggregation a site helps with."""

    rows: Annotated[int, Field(ge=2, description="fewest clients of a sum; with 2, one that colludes gets the row")] = 3
    share: Annotated[
        float, Field(gt=0, le=1, description="largest share of one client in a sum of unequal weights")
    ] = 0.75


class SiteLimits(Config):
    """The most work and memory that a server may ask of a site; checked before anything is built."""

    epochs: Annotated[int, Field(ge=1, description="epochs in a round, and of fine-tuning")] = 100
    steps: Annotated[int, Field(ge=1, description="steps in a round that is not in epochs")] = 100_000
    rounds: Annotated[int, Field(ge=1, description="rounds of a run")] = 10_000
    pixels: Annotated[int, Field(ge=1, description="values of a batch: images times height times width")] = 2**25
    width: Annotated[int, Field(ge=1, description="width of decoders and of encoders' projections")] = 1024
    images: Annotated[int, Field(ge=1, description="images of a rendered data set")] = 100_000
    workers: Annotated[int, Field(ge=0, description="threads that preload images")] = 16
    learning_rate: Annotated[float, Field(gt=0, description="highest learning rate, which also bounds rows")] = 1.0
    noise: Annotated[float, Field(ge=0, description="noise of others on each value, which also bounds rows")] = 10.0
    clients: Annotated[int, Field(ge=1, description="clients that an invitation may list")] = 10_000


class SiteConfig(Config):
    """One site: its client in the federation, and its files. No server can change any of it."""

    client: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", description="its name in the experiment")]
    tasks: Annotated[tuple[str, ...], Field(min_length=1, description="the tasks it has labels for")]
    state: Annotated[Path, Field(description="folder for its models and its state between rounds")]
    data: Annotated[
        dict[str, Any],
        Field(
            default_factory=dict,
            description="its data set: mainly root, partition to use only some of the images, or a kind of its own",
        ),
    ]
    own_tasks: Annotated[
        dict[str, DeclaredTask],
        Field(default_factory=dict, description="its own code of tasks that are not built in, by name"),
    ]
    methods: Annotated[
        tuple[str, ...],
        Field(
            description="methods it takes part in; one from a file or another package, as file.py:NAME or module:NAME, "
            "runs that code"
        ),
    ] = tuple(METHODS)
    share: Annotated[
        tuple[Literal["encoder", "decoder", "head"], ...],
        Field(description="parts of its model that may leave the site"),
    ] = ("encoder", "decoder")
    encoders: Annotated[
        tuple[str, ...],
        Field(
            description="encoders it may build, by timm's names; classes for models from a file or another package, as "
            "file.py:NAME or module:NAME, run that code"
        ),
    ] = (  # those of the experiments that come with the package
        "mlp",
        "swin_micro",
        "swin_mini",
        "swin_tiny_patch4_window7_224",
        "swin_small_patch4_window7_224",
        "swin_base_patch4_window7_224",
        "resnet18.tv_in1k",
        "tiny_vit_5m_224",
        "mobilenetv3_small_050",
        "tf_efficientnet_lite0",
    )
    weights: Annotated[
        Literal["timm"] | Path | None,
        Field(description="the encoder's initial weights: a file, or timm's own if they are on this machine"),
    ] = None
    scores: Annotated[
        SiteScores | None, Field(description="which scores it reports; by default final, or none if ε has a limit")
    ] = None
    privacy: Annotated[
        SitePrivacy, Field(description="its own bounds; the experiment's apply if they are stricter")
    ] = SitePrivacy()
    sums_only: Annotated[
        bool, Field(description="rows only leave for secure aggregation, whatever the experiment says")
    ] = False
    sketch: Annotated[
        int, Field(ge=0, description="with sums_only: how many numbers of an update may leave in the clear")
    ] = 1024
    sums: Annotated[SiteSums, Field(description="which sums of secure aggregation it helps with")] = SiteSums()
    limits: Annotated[SiteLimits, Field(description="the most work and memory that a server may ask for")] = (
        SiteLimits()
    )
    device: Annotated[str, Field(description="cuda, cpu, …; auto: a GPU if there is one")] = "auto"
    turns: Annotated[
        Path | None,
        Field(description="a folder that it shares with other sites on its machine: no more work at a time than cores"),
    ] = None
    threads: Annotated[
        int | None, Field(ge=1, description="CPU threads of its work; one with turns, otherwise one for each core")
    ] = None

    @field_validator("scores", mode="before")
    @classmethod
    def _scores_in_a_word(cls, scores: Any) -> Any:
        return {"send": scores} if isinstance(scores, str) else scores

    @model_validator(mode="after")
    def _no_exact_scores_within_a_budget(self) -> "SiteConfig":
        scores = self.reported_scores
        if self.privacy.epsilon is not None and scores.send != "none" and not scores.noise:
            raise ValueError(
                "scores: expected none, or scores with noise, since privacy.epsilon is set, got exact scores"
            )
        return self

    @property
    def reported_scores(self) -> SiteScores:
        """Which scores it reports, including the default."""
        return self.scores or SiteScores(send="final" if self.privacy.epsilon is None else "none")

    @classmethod
    def load(cls, path: Path) -> "SiteConfig":
        """Load a site from its YAML file; relative paths are relative to the file."""
        try:
            values = read_yaml(path)
        except YamlError as error:
            raise UserError(path, str(error)) from None
        if not isinstance(values, dict):
            raise UserError(path, f"expected a mapping of keys to values, got {values!r:.200}")
        try:
            site = cls.model_validate(values)
        except ValidationError as error:
            raise UserError.of(fault.within(path) for fault in list_faults(error)) from None
        return site._beside(path.resolve())

    def _beside(self, file: Path) -> "SiteConfig":
        """The same settings with paths relative to their file made absolute; makes the folder of `turns`."""
        folder = file.parent

        def locate(names: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(located(name, [folder]) if is_import_path(name) else name for name in names)

        changes = {
            "state": folder / self.state,
            "data": _locate_data(self.data, folder),
            "own_tasks": {name: task.located([folder]) for name, task in self.own_tasks.items()},
            "encoders": locate(self.encoders),
            "methods": locate(self.methods),
            "weights": folder / self.weights if isinstance(self.weights, Path) else self.weights,
            "turns": folder / self.turns if self.turns else None,
        }
        if self.turns:
            try:
                (folder / self.turns).mkdir(parents=True, exist_ok=True)
            except OSError as error:
                fault = f"expected a folder, got {error.strerror}: {folder / self.turns}"
                raise UserError(f"{file}: turns", fault) from None
        return self.model_copy(update=changes)


def _locate_data(data: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The settings of a data set with paths relative to this folder made absolute."""
    paths = {"root", *["test"] * isinstance(data.get("test"), str)}
    kind = str(data.get("kind", ""))
    if is_import_path(kind):
        data = {**data, "kind": located(kind, [folder])}
        try:
            paths |= path_settings(settings_class(data["kind"]))
        except ValueError as error:
            raise UserError("data.kind", str(error)) from None
    return {key: str(folder / value) if key in paths and value else value for key, value in data.items()}


class Sent(Config):
    """One noised update, or scores: its destination, the noise in clips, and a digest of the numbers as sent."""

    run: str
    round: int
    noise: Annotated[float, Field(gt=0)]
    digest: str
    kind: Kind = "update"

    @classmethod
    def of(cls, run: str, round: int, noise: float, rows: Mapping[Slot, Tensor], kind: Kind = "update") -> "Sent":
        """Make the entry of these rows."""
        digest = blake2b(digest_size=16)
        for slot, row in sorted(rows.items()):
            digest.update(f"{slot} {row.dtype} {row.numel()}\n".encode())
            digest.update(row.detach().cpu().contiguous().view(torch.uint8).numpy().data)
        return cls(run=run, round=round, noise=noise, digest=digest.hexdigest(), kind=kind)


@dataclass(frozen=True)
class Ledger:
    """A file with a line for each update, in all runs, on disk before the update leaves.

    An identical update that leaves again reveals nothing new and costs nothing.
    """

    path: Path

    @classmethod
    def of(cls, site: SiteConfig) -> "Ledger":
        """The ledger in a site's folder."""
        return cls(site.state / f"{site.client}.ledger.jsonl")

    def entries(self) -> list[Sent]:
        """Everything that has left; raises UserError if the file is damaged, since its cost is then unknown."""
        *lines, unfinished = self.path.read_bytes().split(b"\n") if self.path.exists() else [b""]
        entries: list[Sent] = []
        for number, line in enumerate([*lines, unfinished] if unfinished else lines, 1):
            try:
                entries.append(Sent.model_validate_json(line) if number <= len(lines) else _restored(line, entries))
            except ValueError:
                where = f"{self.path}: line {number}"
                raise UserError(
                    where,
                    f"expected the record of an update, got {line[:40]!r}; nothing is sent until the file is repaired",
                ) from None
        return entries

    def affords(self, run: str, round: int, noise: float, budget: SitePrivacy, kind: Kind = "update") -> bool:
        """Whether an update or scores fit the budget, or are already in the ledger from before a crash."""
        entries = self.entries()
        paid = any((entry.run, entry.round, entry.kind) == (run, round, kind) for entry in entries)
        return paid or _is_within(budget, entries, noise)

    def charge(self, sent: Sent, budget: SitePrivacy) -> None:
        """Record an update so that it may leave; raises UserError if it may not."""
        with FileLock(f"{self.path}.lock", mode=0o600):
            entries = self.entries()
            if any(entry.digest == sent.digest for entry in entries):
                return
            if not _is_within(budget, entries, sent.noise):
                raise UserError("", SPENT)
            write_whole(self.path, b"".join(entry.model_dump_json().encode() + b"\n" for entry in [*entries, sent]))


def _restored(line: bytes, entries: Sequence[Sent]) -> Sent:
    """The entry of a line that lost its end. It costs what an update costs, since it may have left.

    If the line does not say its noise any more, that is the smallest of all; raises ValueError if there are none.
    """
    with suppress(ValidationError):
        return Sent.model_validate_json(line)
    said = re.search(rb'"noise":([0-9.e+-]+),', line)
    noise = float(said[1]) if said else min(entry.noise for entry in entries)
    return Sent(run="unknown", round=-1, noise=noise, digest=blake2b(line, digest_size=16).hexdigest())


def cost(entries: Sequence[Sent], delta: float, *more: float) -> float:
    """The ε of sent updates, and of further ones with these noises."""
    return epsilon(combined(Counter([*(entry.noise for entry in entries), *more])), delta=delta)


def _is_within(budget: SitePrivacy, entries: Sequence[Sent], noise: float) -> bool:
    return budget.epsilon is None or cost(entries, budget.delta, noise) <= budget.epsilon
