"""What a site says of itself, in a file of its own."""

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError, model_validator

from fedhca2.clients import Privacy
from fedhca2.clients.accounting import DELTA, epsilon
from fedhca2.config import Config
from fedhca2.experiment import ConfigError
from fedhca2.experiment.errors import describe
from fedhca2.strict_yaml import YamlError, read_yaml


class SitePrivacy(Privacy):
    """What a site hides of its updates, and how much all of them together may tell, in all runs."""

    epsilon: Annotated[
        float | None, Field(gt=0, description="the ε at which its part ends; by default it does not")
    ] = None
    delta: Annotated[float, Field(gt=0, lt=1, description="the δ that its ε belongs to")] = DELTA

    @model_validator(mode="after")
    def _one_update_is_within_the_budget(self) -> "SitePrivacy":
        if self.epsilon is None:
            return self
        if not self.noise:
            raise ValueError("epsilon should come with noise, without which every update costs more, found none")
        if (least := epsilon(self.noise, delta=self.delta)) > self.epsilon:
            raise ValueError(
                f"epsilon should be at least {least:.4g}, which one update with noise {self.noise:g} costs, "
                f"found {self.epsilon:g}"
            )
        return self


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
    privacy: Annotated[
        SitePrivacy, Field(description="its own bounds; the experiment's hold where they are stricter")
    ] = SitePrivacy()
    sums_only: Annotated[
        bool, Field(description="whether rows leave for secure aggregation alone, whatever the experiment says")
    ] = False
    sketch: Annotated[int, Field(ge=0, description="with sums_only: how many numbers of an update may leave")] = 1024
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
