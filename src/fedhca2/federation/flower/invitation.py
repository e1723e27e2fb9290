"""What the server tells a site of the experiment, and how the site makes it its own."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedhca2.clients import Privacy
from fedhca2.experiment import ClientSpec, ConfigError, Experiment
from fedhca2.experiment.clients import ClientEntry
from fedhca2.experiment.reliability import GuardBounds
from fedhca2.federation.flower.site_config import SiteConfig
from fedhca2.messages import Profile
from fedhca2.methods import METHODS
from fedhca2.models.multitask import build_model, layouts
from fedhca2.tasks import TASKS

RUN = re.compile(r"[A-Za-z0-9]{1,64}")
OWN_WEIGHTS = "own"  # the encoder's first values are a file that every site has


@dataclass(frozen=True)
class Invitation:
    """An experiment without any path or partition, and the name of the run: a site keeps its state by both."""

    run: str
    experiment: Mapping[str, Any]

    @classmethod
    def to(cls, experiment: Experiment, run: str) -> "Invitation":
        """The invitation to an experiment."""
        values = experiment.to_dict()
        for name, data in experiment.data.items():
            dropped = {key for key in type(data).model_fields if isinstance(getattr(data, key), Path)} | {"partition"}
            values["data"][name] = {key: value for key, value in values["data"][name].items() if key not in dropped}
        if experiment.model.encoder.weights not in ("none", "scenes"):
            values["model"]["encoder"]["weights"] = OWN_WEIGHTS
        return cls(run, values)

    @classmethod
    def read(cls, header: Mapping[str, Any]) -> "Invitation":
        """The invitation in a message's header."""
        run = str(header["run"])
        if not RUN.fullmatch(run):  # it names a folder
            raise ConfigError([f"run: should be letters and digits, found {run!r}"])
        return cls(run, dict(header["experiment"]))

    def header(self) -> dict[str, Any]:
        """As data that JSON can hold."""
        return {"run": self.run, "experiment": dict(self.experiment)}

    def accept(self, site: SiteConfig) -> tuple[Experiment, ClientSpec]:
        """The site's part of the experiment with its own data and files, and the client that it is.

        ConfigError if the experiment has no place for this site.
        """
        method = str(self.experiment["method"]["name"])
        if method not in METHODS and not site.own_methods:
            raise ConfigError([f"method: {method!r} is no method of this package, and own_methods is false"])
        spec = self._place(site)
        part = {key: value for key, value in self.experiment.items() if key != "participation"} | {
            "data": {spec.data: {**self.experiment["data"][spec.data], **site.data}},
            "clients": [{"name": spec.name, "data": spec.data, "tasks": spec.tasks, "epochs": spec.epochs}],
            "model": self._model(site),
            "privacy": self._privacy(site).model_dump(),
        }
        experiment = Experiment.parse(part)
        if site.sums_only and experiment.resolved_method.all_aggregators:
            secure = experiment.secure_aggregation
            if secure is None or secure.sketch > site.sketch:
                wanted = f"secure_aggregation with a sketch of at most {site.sketch}"
                found = f"a sketch of {secure.sketch}" if secure else "none"
                raise ConfigError([f"sums_only: the experiment should have {wanted}, found {found}"])
        return experiment, spec

    def _place(self, site: SiteConfig) -> ClientSpec:
        """The client of the experiment that this site is."""
        entries = [ClientEntry.model_validate(entry) for entry in self.experiment["clients"]]
        specs = {spec.name: spec for entry in entries for spec in entry.expand()}
        if site.client not in specs:
            raise ConfigError([f"client: should be one of {', '.join(specs)}, found {site.client!r}"])
        spec = specs[site.client]
        if set(spec.tasks) != set(site.tasks):
            wanted, found = ", ".join(spec.tasks), ", ".join(site.tasks)
            raise ConfigError([f"tasks: the experiment has {wanted} for {site.client!r}, this site has {found}"])
        return spec

    def _privacy(self, site: SiteConfig) -> Privacy:
        """The stricter bounds of both; ConfigError where the server would refuse what leaves with them."""
        declared = Privacy.model_validate(self.experiment["privacy"])
        privacy = site.privacy.stricter(declared)
        guard = GuardBounds.model_validate(self.experiment["guard"])
        if guard.reach and privacy.deviation > max(declared.deviation, guard.noise):
            fault = f"the experiment has {declared.noise:g}, and its guard refuses the {privacy.noise:g} of this site"
            raise ConfigError([f"privacy.noise: {fault}; it should have guard.noise: {privacy.deviation:g} or more"])
        return privacy

    def _model(self, site: SiteConfig) -> dict[str, Any]:
        model = dict(self.experiment["model"])
        if model["encoder"]["weights"] == OWN_WEIGHTS:
            if site.weights is None:
                raise ConfigError(["weights: the experiment starts from a file, and this site names none"])
            model["encoder"] = {**model["encoder"], "weights": str(site.weights)}
        return model


def expected_profile(experiment: Experiment, spec: ClientSpec) -> Profile:
    """Who a client of the experiment is, but for its number of images."""
    data = experiment.data[spec.data]
    channels = {task: TASKS[task].channels_for(data.labels[task]) for task in spec.tasks}
    model = build_model(experiment.model, channels, data.size, seed=experiment.seed, client=spec.name)
    return Profile(spec.name, spec.data, spec.tasks, 0, layouts(model))
