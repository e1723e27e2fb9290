"""An experiment as data: everything that a run depends on, checked before anything is trained."""

from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field, ValidationError, model_validator

from fedhca2.clients import Training
from fedhca2.config import Config, suggest
from fedhca2.data import DataConfig
from fedhca2.experiment.clients import ClientEntry, ClientSpec, expand
from fedhca2.experiment.errors import ConfigError, describe
from fedhca2.experiment.overrides import apply_overrides
from fedhca2.methods import Method, resolve
from fedhca2.models import ModelConfig

DEFAULT_METHOD = "fedhca2"
EMBEDDED = resources.files("fedhca2") / "configs"


class Experiment(Config):
    """Data sets, clients, a model and a method."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")] = "experiment"
    seed: Annotated[
        int, Field(ge=0, lt=2**31, description="of partition, initial values, shuffling and augmentation")
    ] = 0
    rounds: Annotated[int, Field(ge=1)] = 100
    method: Annotated[dict[str, Any], Field(description="a name, and settings that replace its defaults")]
    baseline: Annotated[bool, Field(description="train Local along, to compare with")] = False
    evaluate_every: Annotated[int, Field(ge=0, description="rounds between evaluations; 0: only at the end")] = 0
    model: ModelConfig = ModelConfig()
    training: Training = Training()
    data: Annotated[dict[str, DataConfig], Field(min_length=1)]
    clients: Annotated[tuple[ClientEntry, ...], Field(min_length=1)]

    @model_validator(mode="before")
    @classmethod
    def _method_by_name(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        method = values.get("method", {})
        method = {"name": method} if isinstance(method, str) else method
        return {**values, "method": {"name": DEFAULT_METHOD, **method} if isinstance(method, dict) else method}

    @property
    def method_name(self) -> str:
        """What the method is called."""
        return str(self.method["name"])

    @cached_property
    def resolved_method(self) -> Method:
        """The method with its settings."""
        settings = dict(self.method)
        try:
            return resolve(settings.pop("name"), settings)
        except ValueError as error:
            raise ConfigError([f"method: {error}"]) from None

    @cached_property
    def specs(self) -> list[ClientSpec]:
        """All clients."""
        return expand(self.clients, {name: data.labels for name, data in self.data.items()})

    @classmethod
    def load(cls, source: str | Path = "demo", overrides: list[str] | None = None) -> "Experiment":
        """An experiment from a YAML file or by the name of an embedded one, with `key=value` overrides."""
        return cls.parse(apply_overrides(read_config(source), overrides or []))

    @classmethod
    def parse(cls, values: Any) -> "Experiment":
        """An experiment from plain data; ConfigError if something is wrong with it."""
        if not isinstance(values, dict):
            raise ConfigError([f"config: should be a mapping of keys to values, found {values!r}"])
        try:
            experiment = cls.model_validate(values)
        except ValidationError as error:
            raise ConfigError(describe(error)) from None
        _ = experiment.resolved_method, experiment.specs
        return experiment

    def with_method(self, name: str) -> "Experiment":
        """The same experiment with another method, at its default settings, and no baseline."""
        return self.parse(
            {**self.model_dump(mode="json", exclude_none=True), "method": {"name": name}, "baseline": False}
        )

    def to_dict(self) -> dict[str, Any]:
        """Everything, with all defaults filled in, as plain data that `parse` reads."""
        values = self.model_dump(mode="json", exclude_none=True)
        method = self.resolved_method.model_dump(mode="json", exclude={"reference"})
        return {**values, "method": {"name": self.method_name, **method}}

    def to_yaml(self) -> str:
        """The same as a YAML document."""
        return yaml.safe_dump(self.to_dict(), sort_keys=False, allow_unicode=True)


def read_config(source: str | Path) -> Any:
    """Plain data from a YAML file, or from the embedded config of that name."""
    path = Path(source)
    if path.suffix not in (".yaml", ".yml"):
        embedded = EMBEDDED / f"{source}.yaml"
        if not embedded.is_file():
            known = sorted(
                entry.name.removesuffix(".yaml") for entry in EMBEDDED.iterdir() if entry.name.endswith(".yaml")
            )
            raise ConfigError(
                [f"{source}: neither a .yaml file nor an embedded experiment. {suggest(str(source), known)}"]
            )
        text = embedded.read_text("utf-8")
    else:
        try:
            text = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError([f"{source}: cannot be read: {getattr(error, 'strerror', None) or error}"]) from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError([f"{source}: not valid YAML: {' '.join(str(error).split())}"]) from None
