"""What a server asks of a site, and whether the site agrees: only what its own file allows and the method needs."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

from fedhca2.clients import Privacy
from fedhca2.data import KINDS
from fedhca2.data.own import OwnData
from fedhca2.errors import UserError
from fedhca2.experiment import ClientSpec, Experiment
from fedhca2.experiment.build import common_client_model
from fedhca2.experiment.clients import ClientEntry
from fedhca2.experiment.settings import GuardBounds
from fedhca2.federation.flower.deploy.site_config import SiteConfig
from fedhca2.federation.gate import shown
from fedhca2.imports import file_name, is_import_path
from fedhca2.messages import Order, Profile
from fedhca2.models import ModelConfig, fingerprint
from fedhca2.models.config import with_classes
from fedhca2.params import STATISTICS, layouts
from fedhca2.tasks import TASKS
from fedhca2.tasks.task import class_digests

OWN = "own"  # weights, a data set, test images or a task for which every site has a file or code of its own
EMBEDDED_WEIGHTS = ("none", "scenes")
OWN_FILES = {"root", "partition"}  # of a data set: the location of its files
# Data sets whose other settings name no files and no code; a site reads all others as its own file says.
TOLD_KINDS = [kind for kind, settings in KINDS.items() if not issubclass(settings, OwnData)]


class RefusalError(UserError):
    """The server asks for something that the site does not allow.

    `keys` names the settings in site.yaml that would allow it: all that the server learns of a site's settings.
    """

    def __init__(self, where: str | Path, message: str, *keys: str) -> None:
        super().__init__(where, message)
        self.keys = keys


@dataclass(frozen=True)
class Invitation:
    """An experiment without paths or partitions, and the name of the run: a site keeps its state under both."""

    run: str
    experiment: Mapping[str, Any]

    @classmethod
    def for_experiment(cls, experiment: Experiment, run: str) -> "Invitation":
        """Make the invitation to an experiment."""
        values = experiment.to_dict()
        for name, data in values["data"].items():
            if data["kind"] in TOLD_KINDS:
                values["data"][name] = {key: value for key, value in data.items() if key not in OWN_FILES}
            else:
                kept = {key: value for key, value in data.items() if key in ("size", "test")}
                values["data"][name] = {"kind": OWN, **kept}
            if isinstance(data.get("test"), str):
                values["data"][name]["test"] = OWN
        for name, task in values["tasks"].items():
            values["tasks"][name] = task if task["kind"] in TASKS else {"kind": OWN}
        for holder in (values, *(client for client in values["clients"] if "model" in client)):
            model = holder["model"] = with_classes(holder["model"], file_name)
            if model.get("encoder", {}).get("weights", "none") not in EMBEDDED_WEIGHTS:
                model["encoder"]["weights"] = OWN
        values["method"]["name"] = file_name(values["method"]["name"])
        return cls(run, values)

    def header_for(self, client: str) -> dict[str, Any]:
        """What this client's site needs of it, as JSON data: nothing of other clients, their data sets and tasks."""
        return {"run": self.run, "experiment": self._part(self._specs[client])}

    def _part(self, spec: ClientSpec) -> dict[str, Any]:
        needed = ["name", "seed", "rounds", "method", "training", "skip_broken", "privacy", "guard"]
        needed += ["secure_aggregation", "diagnostics", "evaluate_every", "select", "patience"]
        part = {key: self.experiment[key] for key in needed if key in self.experiment}
        part["guard"] = {key: value for key, value in part["guard"].items() if key != "images"}
        for key in ("tasks", "metrics"):
            part[key] = {task: value for task, value in self.experiment[key].items() if task in spec.tasks}
        length = {"steps": spec.steps} if spec.steps else {"epochs": spec.epochs}
        return part | {
            "data": {spec.data: self.experiment["data"][spec.data]},
            "clients": [{"name": spec.name, "data": spec.data, "tasks": list(spec.tasks), **length}],
            "model": spec.model.model_dump(mode="json", exclude_none=True),
        }

    @classmethod
    def read(cls, header: Mapping[str, Any]) -> "Invitation":
        """Read the invitation in a message's header."""
        run = str(header["run"])
        if not re.fullmatch(r"[A-Za-z0-9]{1,64}", run):  # it becomes the name of a folder
            raise UserError("run", f"expected at most 64 letters and digits, got {run!r}")
        return cls(run, dict(header["experiment"]))

    def accept(self, site: SiteConfig) -> Experiment:
        """The site's part of the experiment: the client that it is, with its own data and files.

        Raises UserError if the experiment has no such client, or asks for something that the site does not allow.
        """
        if unknown := sorted(self.experiment.keys() - Experiment.model_fields.keys()):
            raise RefusalError(unknown[0][:80], "expected a setting of this version of fedhca2")
        spec = self._spec_of(site)
        # With classes from the site's files of the same names, if the site lists them.
        classes = with_classes(spec.model.model_dump(), lambda path: _own_path(path, site.encoders))
        model = ModelConfig.model_validate(classes)
        method = _own_path(self.experiment["method"]["name"], site.methods)
        _check_names({**self.experiment, "method": {"name": method}}, model, site)
        own, part = {name: task.model_dump() for name, task in site.own_tasks.items()}, self._part(spec)
        part |= {
            "method": {**part["method"], "name": method},
            "data": {spec.data: self._data(spec.data, site)},
            "tasks": part["tasks"] | {name: task for name, task in own.items() if name in spec.tasks},
            "model": model.model_dump(exclude_none=True),
            **self._privacy(site),
        }
        if model.encoder.weights == OWN:
            part["model"]["encoder"]["weights"] = str(site.weights)
        if part["privacy"]["noise"]:  # of this site alone; it then reports no losses
            part.pop("diagnostics", None)
        accepted = Experiment.parse(part)
        _check_terms(accepted, site)
        return accepted

    def _data(self, name: str, site: SiteConfig) -> dict[str, Any]:
        """The site's data set: as in the experiment with the site's settings, or what the site reads by itself."""
        declared = self.experiment["data"][name]
        if "kind" in site.data and site.data["kind"] != declared["kind"]:
            return {key: value for key, value in declared.items() if key in ("size", "test")} | site.data
        if declared["kind"] == OWN:
            raise RefusalError(f"data.{name}", "expected how its images are read (data.kind), got none", "data.kind")
        return {**declared, **site.data}

    @cached_property
    def _entries(self) -> list[ClientEntry]:
        return [ClientEntry.model_validate(entry) for entry in self.experiment["clients"]]

    @cached_property
    def _specs(self) -> dict[str, ClientSpec]:
        """The clients of the experiment, by name."""
        model = ModelConfig.model_validate(self.experiment["model"])
        return {spec.name: spec for entry in self._entries for spec in entry.expand(model)}

    def _spec_of(self, site: SiteConfig) -> ClientSpec:
        """The client of the experiment that this site is."""
        count = sum(entry.copies * len(entry.split or (entry.tasks,)) for entry in self._entries)
        if count > site.limits.clients:  # before each of them is made
            raise _too_much("clients", count, "clients", site)
        if site.client not in self._specs:
            raise RefusalError("client", f"expected {', '.join(self._specs)}, got {site.client!r}", "client")
        spec = self._specs[site.client]
        if set(spec.tasks) != set(site.tasks):
            expected = f"{', '.join(spec.tasks)} for {site.client!r}, as in the experiment"
            raise RefusalError("tasks", f"expected {expected}, got {', '.join(site.tasks)}", "tasks")
        return spec

    def _privacy(self, site: SiteConfig) -> dict[str, Any]:
        """The stricter bounds of both, and the noise that others may add.

        Raises UserError if the server would refuse rows with these bounds.
        """
        declared = Privacy.model_validate(self.experiment["privacy"])
        privacy = site.privacy.stricter(declared)
        guard = GuardBounds.model_validate(self.experiment["guard"])
        noise = max(declared.deviation, guard.noise)
        if guard.reach and privacy.deviation > noise:
            expected = f"guard.noise of {privacy.deviation:g} or more in the experiment for the {privacy.noise:g} here"
            raise RefusalError("privacy.noise", f"expected {expected}, got {noise:g}", "privacy.noise")
        return {"privacy": privacy.model_dump(), "guard": {**self.experiment["guard"], "noise": noise}}


def check_order(order: Order, experiment: Experiment, site: SiteConfig) -> None:
    """Refuse an order that the agreed method does not need in this round."""
    method, rounds = experiment.resolved_method, experiment.rounds
    if type(order.round) is not int or not 0 <= order.round <= rounds:
        raise RefusalError("round", f"expected 0 to {rounds}, got {shown(order.round)}")
    ordered = {"upload": set(order.upload), "deliveries": {slot.part for slot in order.deliveries}}
    # Running statistics belong to the part of their layers.
    pairs = sorted((key, part) for key, parts in ordered.items() for part in parts)
    withheld = [(key, part) for key, part in pairs if part.removesuffix("_norms") not in site.share]
    _raise_all(_unlisted(key, part, "share", site.share) for key, part in withheld)
    last = order.round == rounds
    most = {} if last else dict(method.uploads(order.round))  # less if no other client has such an encoder
    agreed = f"{experiment.method_name} in round {order.round + 1} of {rounds}"
    if (order.finish, order.train) != (last, not last) or not order.upload.items() <= most.items():
        got = f"finish: {order.finish}, train: {order.train}, upload: {shown(order.upload)}"
        raise RefusalError(agreed, f"expected finish: {last}, train: {not last}, upload: {most}, got {got}")
    shared = [*method.all_aggregators]
    norms = [norms for part, norms in STATISTICS.items() if part in shared and method.batch_norm == "average"]
    if unexpected := ordered["deliveries"] - {*shared, *norms}:
        raise RefusalError(agreed, f"expected no deliveries of {', '.join(sorted(unexpected))}, got some")


def expected_profile(experiment: Experiment, spec: ClientSpec) -> Profile:
    """The profile of a client of the experiment, except its number of images."""
    labels = experiment.labels[spec.data]
    model = common_client_model(experiment, spec, labels, experiment.size_of(spec.data))
    classes = class_digests(spec.tasks, labels)
    return Profile(spec.name, spec.data, spec.tasks, 0, layouts(model), fingerprint(model), classes)


def _check_names(experiment: Mapping[str, Any], model: ModelConfig, site: SiteConfig) -> None:
    """Refuse an experiment that would run code, open files or contact hosts that the site has not listed.

    `model` is the one that the experiment has for this site.
    """
    encoder = model.encoder
    named: list[tuple[str, Any, str, Iterable[str]]] = [  # where, what is named, and the setting with what is allowed
        ("method", experiment["method"]["name"], "methods", site.methods),
        *([] if encoder.is_own else [("model.encoder.name", encoder.title, "encoders", site.encoders)]),
        *((f"model.{name}.kind", part.kind, "encoders", site.encoders) for name, part in model.own_parts.items()),
        ("model.encoder.weights", encoder.weights, "weights", (*EMBEDDED_WEIGHTS, *[OWN] * bool(site.weights))),
    ]
    for name, data in experiment["data"].items():
        named.append((f"data.{name}.kind", data["kind"], "data.kind", (*TOLD_KINDS, OWN)))
        named += [(f"data.{name}.{key}", data[key], f"data.{key}", ()) for key in sorted(OWN_FILES & {*data})]
        if isinstance(data.get("test"), str):
            named.append((f"data.{name}.test", data["test"], "data.test", [OWN] * ("test" in site.data)))
    for name, task in experiment.get("tasks", {}).items():
        if name in site.tasks:  # others are another site's
            named.append((f"tasks.{name}.kind", task["kind"], "own_tasks", (*TASKS, *[OWN] * (name in site.own_tasks))))
    _raise_all(_unlisted(*each) for each in named if each[1] not in each[3])


def _check_terms(experiment: Experiment, site: SiteConfig) -> None:
    """Refuse a method that shares parts that the site keeps, or rows in the clear if the site only sends sums.

    Also an experiment, as the site agreed to it, that takes more time or memory than the site gives.
    """
    method, secure = experiment.resolved_method, experiment.secure_aggregation
    withheld = [part for part in method.all_aggregators if part not in site.share]
    _raise_all(_unlisted("method", part, "share", site.share) for part in withheld)
    if site.sums_only and method.all_aggregators and (secure is None or secure.sketch > site.sketch):
        expected = f"a sketch of at most {site.sketch} (sums_only in site.yaml)"
        got = f"a sketch of {secure.sketch}" if secure else "none"
        raise RefusalError("secure_aggregation", f"expected {expected}, got {got}", "sums_only")
    [spec], training = experiment.specs, experiment.training
    data, size = experiment.data[spec.data], experiment.size_of(spec.data)
    amounts: list[tuple[str, str, float | None]] = [  # limits, what they bound, and its value
        ("epochs", "clients.epochs", spec.epochs),
        *(("epochs", f"method.local.{key}", value) for key, value in method.local if key.endswith("epochs")),
        ("steps", "clients.steps", spec.steps),
        ("rounds", "rounds", experiment.rounds),
        ("pixels", f"training.batch_size times data.{spec.data}.size", prod(size, start=training.batch_size)),
        *(("width", f"model.{key}", getattr(spec.model, key)) for key in ("decoder_width", "feature_width")),
        *(("images", f"data.{spec.data}.{key}", getattr(data, key, None)) for key in ("train", "val")),
        ("workers", "training.workers", training.workers),
        *(("learning_rate", f"training.{key}", getattr(training, key)) for key in ("learning_rate", "encoder_rate")),
        ("noise", "guard.noise", experiment.guard.noise),
    ]
    limits = site.limits
    _raise_all(_too_much(where, n, key, site) for key, where, n in amounts if n and n > getattr(limits, key))


def _own_path(path: object, own: Iterable[str]) -> str:
    """The site's own path of the file that an import path names, if it lists one; otherwise the path without folder."""
    name = file_name(str(path))
    return {file_name(each): each for each in own if is_import_path(each)}.get(name, name)


def _unlisted(where: str, got: object, key: str, allowed: Iterable[str]) -> RefusalError:
    listed = [each for each in allowed if each != OWN]
    more = [f"{len(listed) - 10} more"] if len(listed) > 10 else []  # a log's line has an end
    expected = ", ".join([*listed[:10], *more]) or "only the site's own"
    return RefusalError(where, f"expected {expected} ({key} in site.yaml), got {shown(got)}", key)


def _too_much(where: str, got: float, key: str, site: SiteConfig) -> RefusalError:
    key, most = f"limits.{key}", getattr(site.limits, key)
    return RefusalError(where, f"expected at most {most:g} ({key} in site.yaml), got {got:g}", key)


def _raise_all(refusals: Iterable[RefusalError]) -> None:
    """Raise these as one error, if there are any."""
    if errors := list(refusals):
        error = RefusalError.of(fault for each in errors for fault in each.faults)
        error.keys = tuple(dict.fromkeys(key for each in errors for key in each.keys))
        raise error
