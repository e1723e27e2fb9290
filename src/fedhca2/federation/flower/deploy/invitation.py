"""What the server tells a site about the experiment, and how the site adapts it."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fedhca2.clients import Privacy
from fedhca2.errors import UserError
from fedhca2.experiment import ClientSpec, Experiment
from fedhca2.experiment.build import build_client_model
from fedhca2.experiment.clients import ClientEntry
from fedhca2.experiment.reliability import GuardBounds
from fedhca2.federation.flower.deploy.consent import (
    EMBEDDED_WEIGHTS,
    OWN_FILES,
    OWN_KIND,
    OWN_WEIGHTS,
    TOLD_KINDS,
    RefusalError,
    check_clients,
    check_experiment,
    check_parts,
    check_sums_only,
    check_work,
)
from fedhca2.federation.flower.deploy.site_config import SiteConfig
from fedhca2.imports import file_name, is_import_path
from fedhca2.messages import Profile
from fedhca2.models import ModelConfig, fingerprint
from fedhca2.models.config import with_classes
from fedhca2.params import layouts
from fedhca2.tasks import TASKS
from fedhca2.tasks.task import class_digests

RUN = re.compile(r"[A-Za-z0-9]{1,64}")
# Of an experiment, what a site needs besides its own client, data set, tasks and model.
NEEDED = (
    *("name", "seed", "rounds", "method", "training", "skip_broken"),
    *("privacy", "secure_aggregation", "guard", "diagnostics"),
)


@dataclass(frozen=True)
class Invitation:
    """An experiment without paths or partitions, and the name of the run: a site keeps its state under both."""

    run: str
    experiment: Mapping[str, Any]

    @classmethod
    def to(cls, experiment: Experiment, run: str) -> "Invitation":
        """Make the invitation to an experiment."""
        values = experiment.to_dict()
        for name, data in values["data"].items():
            if data["kind"] in TOLD_KINDS:
                values["data"][name] = {key: value for key, value in data.items() if key not in OWN_FILES}
            else:
                values["data"][name] = {"kind": OWN_KIND, "size": data["size"]}
        for name, task in values["tasks"].items():
            values["tasks"][name] = task if task["kind"] in TASKS else {"kind": OWN_KIND}
        for holder in (values, *(client for client in values["clients"] if "model" in client)):
            model = holder["model"] = with_classes(holder["model"], file_name)
            if model.get("encoder", {}).get("weights", "none") not in EMBEDDED_WEIGHTS:
                model["encoder"]["weights"] = OWN_WEIGHTS
        values["method"]["name"] = file_name(values["method"]["name"])
        return cls(run, values)

    def only_for(self, client: str) -> "Invitation":
        """What this client's site needs of it: nothing of other clients, their data sets and tasks."""
        spec = self._specs[client]
        part = {key: self.experiment[key] for key in NEEDED if key in self.experiment}
        part["guard"] = {key: value for key, value in part["guard"].items() if key != "images"}
        by_task = {
            key: {task: value for task, value in self.experiment[key].items() if task in spec.tasks}
            for key in ("tasks", "metrics")
        }
        own = {"name": spec.name, "data": spec.data, "tasks": list(spec.tasks), "epochs": spec.epochs}
        model = spec.model.model_dump(mode="json", exclude_none=True)
        data = {spec.data: self.experiment["data"][spec.data]}
        return Invitation(self.run, {**part, **by_task, "data": data, "clients": [own], "model": model})

    @classmethod
    def read(cls, header: Mapping[str, Any]) -> "Invitation":
        """Read the invitation in a message's header."""
        run = str(header["run"])
        if not RUN.fullmatch(run):  # it becomes the name of a folder
            raise UserError([f"run: should consist of letters and digits, found {run!r}"])
        return cls(run, dict(header["experiment"]))

    def header(self) -> dict[str, Any]:
        """Convert to JSON data."""
        return {"run": self.run, "experiment": dict(self.experiment)}

    def accept(self, site: SiteConfig) -> tuple[Experiment, ClientSpec]:
        """The site's part of the experiment, with its own data and files, and the client that it is.

        Raises UserError if the experiment has no such client, or asks for something that the site does not allow.
        """
        spec = self._place(site)
        model = _with_own_files(spec.model, site)
        method = _listed(self.experiment["method"]["name"], site.methods)
        check_experiment({**self.experiment, "method": {"name": method}}, model, site)
        part = {key: value for key, value in self.experiment.items() if key != "participation"} | {
            "method": {**self.experiment["method"], "name": method},
            "data": {spec.data: self._data(spec.data, site)},
            "tasks": self._tasks(spec, site),
            "metrics": {task: name for task, name in self.experiment["metrics"].items() if task in spec.tasks},
            "clients": [{"name": spec.name, "data": spec.data, "tasks": spec.tasks, "epochs": spec.epochs}],
            "model": _with_own_weights(model, site),
            **self._privacy(site),
        }
        if part["privacy"]["noise"]:  # of this site alone; it then tells no losses
            part.pop("diagnostics", None)
        accepted = Experiment.parse(part)
        check_parts(accepted.resolved_method, site)
        check_sums_only(accepted, site)
        check_work(accepted, site)
        return accepted, spec

    def _data(self, name: str, site: SiteConfig) -> dict[str, Any]:
        """The site's data set: as in the experiment with the site's settings, or what the site reads by itself."""
        told = self.experiment["data"][name]
        if "kind" in site.data and site.data["kind"] != told["kind"]:
            return {"size": told["size"], **site.data}
        if told["kind"] == OWN_KIND:
            fault = f"data.{name}: this site should say how its images are read (data.kind in site.yaml)"
            raise RefusalError([fault], ["data.kind"])
        return {**told, **site.data}

    def _tasks(self, spec: ClientSpec, site: SiteConfig) -> dict[str, Any]:
        """The declared tasks that this client has, with the site's own code."""
        own = {name: task.model_dump() for name, task in site.own_tasks.items()}
        declared = {**self.experiment.get("tasks", {}), **own}
        return {name: declared[name] for name in spec.tasks if name in declared}

    @cached_property
    def _entries(self) -> list[ClientEntry]:
        return [ClientEntry.model_validate(entry) for entry in self.experiment["clients"]]

    @cached_property
    def _specs(self) -> dict[str, ClientSpec]:
        """The clients of the experiment, by name."""
        model = ModelConfig.model_validate(self.experiment["model"])
        return {spec.name: spec for entry in self._entries for spec in entry.expand(model)}

    def _place(self, site: SiteConfig) -> ClientSpec:
        """The client of the experiment that this site is."""
        check_clients(self._entries, site)
        specs = self._specs
        if site.client not in specs:
            raise RefusalError([f"client: expected {', '.join(specs)}, got {site.client!r}"], ["client"])
        spec = specs[site.client]
        if set(spec.tasks) != set(site.tasks):
            wanted, found = ", ".join(spec.tasks), ", ".join(site.tasks)
            fault = f"tasks: the experiment has {wanted} for {site.client!r}, this site has {found}"
            raise RefusalError([fault], ["tasks"])
        return spec

    def _privacy(self, site: SiteConfig) -> dict[str, Any]:
        """The stricter bounds of both, and the noise that others may add.

        Raises UserError if the server would refuse rows with these bounds.
        """
        declared = Privacy.model_validate(self.experiment["privacy"])
        privacy = site.privacy.stricter(declared)
        guard = GuardBounds.model_validate(self.experiment["guard"])
        if guard.reach and privacy.deviation > max(declared.deviation, guard.noise):
            fault = f"the experiment has {declared.noise:g}, and its guard refuses the {privacy.noise:g} of this site"
            hint = f"it should have guard.noise: {privacy.deviation:g} or more"
            raise RefusalError([f"privacy.noise: {fault}; {hint}"], ["privacy.noise"])
        noise = max(declared.deviation, guard.noise)
        return {"privacy": privacy.model_dump(), "guard": {**self.experiment["guard"], "noise": noise}}


def _with_own_files(model: ModelConfig, site: SiteConfig) -> ModelConfig:
    """The model with classes from the site's files of the same names, if the site lists them."""
    return ModelConfig.model_validate(with_classes(model.model_dump(), lambda path: _listed(path, site.encoders)))


def _listed(path: object, own: Iterable[str]) -> str:
    """The site's own path of the file that an import path names, if it is listed; otherwise the path as it crosses."""
    crossing = file_name(str(path))
    return {file_name(each): each for each in own if is_import_path(each)}.get(crossing, crossing)


def _with_own_weights(model: ModelConfig, site: SiteConfig) -> dict[str, Any]:
    values = model.model_dump(exclude_none=True)
    if model.encoder.weights == OWN_WEIGHTS:
        values["encoder"]["weights"] = str(site.weights)
    return values


def expected_profile(experiment: Experiment, spec: ClientSpec) -> Profile:
    """The profile of a client of the experiment, except its number of images."""
    data = experiment.data[spec.data]
    labels = experiment.labels[spec.data]
    model = build_client_model(experiment, spec, labels, data.size)
    classes = class_digests(spec.tasks, labels)
    return Profile(spec.name, spec.data, spec.tasks, 0, layouts(model), fingerprint(model), classes)
