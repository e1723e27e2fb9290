"""A site's own settings, from its own file."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from fedhca2.clients import Privacy
from fedhca2.clients.privacy import DELTA, epsilon
from fedhca2.config import Config
from fedhca2.config_errors import describe
from fedhca2.data.config import path_settings
from fedhca2.data.own import settings_class
from fedhca2.errors import UserError
from fedhca2.imports import is_import_path, located
from fedhca2.methods import METHODS
from fedhca2.strict_yaml import YamlError, read_yaml
from fedhca2.tasks.declared import DeclaredTask

# The encoders of the experiments that come with the package.
ENCODERS = (
    "swin_micro",
    "swin_mini",
    "swin_tiny_patch4_window7_224",
    "swin_small_patch4_window7_224",
    "swin_base_patch4_window7_224",
    "resnet18.tv_in1k",
    "tiny_vit_5m_224",
    "mobilenetv3_small_050",
)


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
            raise ValueError("epsilon should come with noise, without which every update exceeds it, found none")
        if (least := epsilon(self.noise, delta=self.delta)) > self.epsilon:
            raise ValueError(
                f"epsilon should be at least {least:.4g}, the cost of one update with noise {self.noise:g}, "
                f"found {self.epsilon:g}"
            )
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
    ] = ENCODERS
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
            raise ValueError("scores: expected none or noised ones if privacy has an epsilon, got exact ones")
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
            raise UserError([f"{path}: {error}"]) from None
        if not isinstance(values, dict):
            raise UserError([f"{path}: should be a mapping of keys to values, found {values!r:.200}"])
        try:
            site = cls.model_validate(values)
        except ValidationError as error:
            raise UserError([f"{path}: {line}" for line in describe(error)]) from None
        folder = path.resolve().parent
        data = _beside(folder, site.data)
        tasks = {name: task.located([folder]) for name, task in site.own_tasks.items()}
        encoders, methods = (
            tuple(located(path, [folder]) if is_import_path(path) else path for path in paths)
            for paths in (site.encoders, site.methods)
        )
        weights = folder / site.weights if isinstance(site.weights, Path) else site.weights
        return site.model_copy(
            update={
                "state": folder / site.state,
                "data": data,
                "own_tasks": tasks,
                "encoders": encoders,
                "methods": methods,
                "weights": weights,
                "turns": site.turns and _made(folder / site.turns, path),
            }
        )


def _made(folder: Path, file: Path) -> Path:
    """A folder that several sites share, which the first of them makes."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fault = f"should be a folder, or one that can be made, found {error.strerror}"
        raise UserError([f"{file}: turns: {fault}: {folder}"]) from None
    return folder


def _beside(folder: Path, data: dict[str, Any]) -> dict[str, Any]:
    """The settings of a data set with paths relative to this folder made absolute."""
    paths = {"root"}
    kind = str(data.get("kind", ""))
    if is_import_path(kind):
        data = {**data, "kind": located(kind, [folder])}
        try:
            paths |= path_settings(settings_class(data["kind"]))
        except ValueError as error:
            raise UserError([f"data.kind: {error}"]) from None
    return {key: str(folder / value) if key in paths else value for key, value in data.items()}
