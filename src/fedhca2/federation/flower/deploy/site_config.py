"""A site's own settings, from its own file, and its ledger of the noised updates and scores that have left it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from filelock import FileLock
from pydantic import AfterValidator, Field, ValidationError, ValidationInfo, field_validator, model_validator
from torch import Tensor

from fedhca2.clients import Privacy
from fedhca2.clients.privacy import DELTA, combined, epsilon
from fedhca2.config import Config
from fedhca2.data.config import path_settings
from fedhca2.data.own import settings_class
from fedhca2.errors import UserError, list_faults
from fedhca2.imports import folders, is_import_path, resolve_path
from fedhca2.methods import METHODS
from fedhca2.params import Slot
from fedhca2.strict_yaml import YamlError, read_yaml
from fedhca2.tasks.built_in import DeclaredTask
from fedhca2.whole_files import write_whole

SPENT = "the privacy budget is spent"
Kind = Literal["update", "scores"]
# Relative to the site's file.
OwnPath = Annotated[Path, AfterValidator(lambda path, info: Path(*folders(info)) / path)]
OwnTask = Annotated[DeclaredTask, AfterValidator(lambda task, info: task.resolve_path(folders(info)))]
OwnName = Annotated[
    str, AfterValidator(lambda name, info: resolve_path(name, folders(info)) if is_import_path(name) else name)
]


class SiteScores(Config):
    """What a site reports of its models' scores."""

    send: Literal["all", "final", "none"] = Field("final", description="whenever asked, after the last round, or never")
    noise: float = Field(
        0.0, ge=0, description="standard deviation on each score, in its range times the root of their number; 0: exact"
    )

    @model_validator(mode="after")
    def _noise_hides_something(self) -> "SiteScores":
        Privacy(clip=1.0, noise=self.noise)
        return self


class SitePrivacy(Privacy):
    """How a site protects its updates, and how much all of them together may reveal, in all runs."""

    epsilon: float | None = Field(None, gt=0, description="the ε at which it stops taking part; no limit by default")
    delta: float = Field(DELTA, gt=0, lt=1, description="the δ for its ε")

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

    rows: int = Field(3, ge=2, description="fewest clients of a sum; with 2, one that colludes gets the row")
    share: float = Field(0.75, gt=0, le=1, description="largest share of one client in a sum of unequal weights")


class SiteLimits(Config):
    """The most work and memory that a server may ask of a site; checked before anything is built."""

    epochs: int = Field(100, ge=1, description="epochs in a round, and of fine-tuning")
    steps: int = Field(100_000, ge=1, description="steps in a round that is not in epochs")
    rounds: int = Field(10_000, ge=1, description="rounds of a run")
    pixels: int = Field(2**25, ge=1, description="values of a batch: images times height times width")
    width: int = Field(1024, ge=1, description="width of decoders and of encoders' projections")
    images: int = Field(100_000, ge=1, description="images of a rendered data set")
    workers: int = Field(16, ge=0, description="threads that preload images")
    learning_rate: float = Field(1.0, gt=0, description="highest learning rate, which also bounds rows")
    noise: float = Field(10.0, ge=0, description="noise of others on each value, which also bounds rows")
    clients: int = Field(10_000, ge=1, description="clients that an invitation may list")


ENCODERS = (  # those of the experiments that come with the package
    "mlp", "swin_micro", "swin_mini", "swin_tiny_patch4_window7_224", "swin_small_patch4_window7_224",
    "swin_base_patch4_window7_224", "resnet18.tv_in1k", "tiny_vit_5m_224", "mobilenetv3_small_050",
    "tf_efficientnet_lite0",
)  # fmt: skip


class SiteConfig(Config):
    """One site: its client in the federation, and its files. No server can change any of it."""

    client: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", description="its name in the experiment")
    tasks: tuple[str, ...] = Field(min_length=1, description="the tasks it has labels for")
    state: OwnPath = Field(description="folder for its models and its state between rounds")
    data: dict[str, Any] = Field(
        {}, description="its data set: mainly root, partition to use only some of the images, or a kind of its own"
    )
    own_tasks: dict[str, OwnTask] = Field({}, description="its own code of tasks that are not built in, by name")
    methods: tuple[OwnName, ...] = Field(
        tuple(METHODS),
        description="methods it takes part in; one from a file or another package, as file.py:NAME or module:NAME, "
        "runs that code",
    )
    share: tuple[Literal["encoder", "decoder", "head"], ...] = Field(
        ("encoder", "decoder"), description="parts of its model that may leave the site"
    )
    encoders: tuple[OwnName, ...] = Field(
        ENCODERS,
        description="encoders it may build, by timm's names; classes for models from a file or another package, as "
        "file.py:NAME or module:NAME, run that code",
    )
    weights: Literal["timm"] | OwnPath | None = Field(
        None, description="the encoder's initial weights: a file, or timm's own if they are on this machine"
    )
    scores: SiteScores | None = Field(
        None, description="which scores it reports; by default final, or none if ε has a limit"
    )
    privacy: SitePrivacy = Field(
        SitePrivacy(), description="its own bounds; the experiment's apply if they are stricter"
    )
    sums_only: bool = Field(False, description="rows only leave for secure aggregation, whatever the experiment says")
    sketch: int = Field(1024, ge=0, description="with sums_only: how many numbers of an update may leave in the clear")
    sums: SiteSums = Field(SiteSums(), description="which sums of secure aggregation it helps with")
    limits: SiteLimits = Field(SiteLimits(), description="the most work and memory that a server may ask for")
    device: str = Field("auto", description="cuda, cpu, …; auto: a GPU if there is one")
    turns: OwnPath | None = Field(
        None, description="a folder that it shares with other sites on its machine: no more work at a time than cores"
    )
    threads: int | None = Field(
        None, ge=1, description="CPU threads of its work; one with turns, otherwise one for each core"
    )

    @field_validator("scores", mode="before")
    @classmethod
    def _scores_in_a_word(cls, scores: Any) -> Any:
        return {"send": scores} if isinstance(scores, str) else scores

    @field_validator("data")
    @classmethod
    def _locate_data(cls, data: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        paths = {"root", *["test"] * isinstance(data.get("test"), str)}
        if is_import_path(kind := str(data.get("kind", ""))):
            data = {**data, "kind": resolve_path(kind, folders(info))}
            paths |= path_settings(settings_class(data["kind"]))
        folder = Path(*folders(info))
        return {key: str(folder / value) if key in paths and value else value for key, value in data.items()}

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
            site = cls.model_validate(values, context={"folders": [path.resolve().parent]})
        except ValidationError as error:
            raise UserError.of(fault.within(path) for fault in list_faults(error)) from None
        if site.turns:
            try:
                site.turns.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                fault = f"expected a folder, got {error.strerror}: {site.turns}"
                raise UserError(f"{path.resolve()}: turns", fault) from None
        return site


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
        entries = []
        for number, line in enumerate(self.path.read_bytes().splitlines() if self.path.exists() else [], 1):
            try:
                entries.append(Sent.model_validate_json(line))
            except ValidationError:
                got = f"got {line[:40]!r}; nothing is sent until the file is repaired"
                raise UserError(f"{self.path}: line {number}", f"expected the record of an update, {got}") from None
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


def cost(entries: Sequence[Sent], delta: float, *more: float) -> float:
    """The ε of sent updates, and of further ones with these noises."""
    return epsilon(combined(Counter([*(entry.noise for entry in entries), *more])), delta=delta)


def _is_within(budget: SitePrivacy, entries: Sequence[Sent], noise: float) -> bool:
    return budget.epsilon is None or cost(entries, budget.delta, noise) <= budget.epsilon
