"""What a server may ask of a site: only what the site's own file allows and the method needs."""

from collections.abc import Iterable, Mapping
from math import prod
from typing import Any, NamedTuple

from fedhca2.data import KINDS
from fedhca2.data.own import OwnData
from fedhca2.errors import UserError
from fedhca2.experiment import Experiment
from fedhca2.experiment.clients import ClientEntry
from fedhca2.federation.flower.deploy.site_config import SiteConfig
from fedhca2.federation.foreign_text import shown
from fedhca2.messages import Order
from fedhca2.methods import Method
from fedhca2.methods.resolve import AGGREGATED
from fedhca2.models import ModelConfig
from fedhca2.params import STATISTICS
from fedhca2.tasks import TASKS

OWN_WEIGHTS = "own"  # the encoder's initial weights are a file that every site has
EMBEDDED_WEIGHTS = ("none", "scenes")
OWN_FILES = {"root", "partition"}  # of a data set: the location of its files
# Data sets whose other settings name no files and no code; a site reads all others as its own file says.
TOLD_KINDS = [kind for kind, settings in KINDS.items() if not issubclass(settings, OwnData)]
OWN_KIND = "own"  # a data set or a task for which every site has code of its own


class RefusalError(UserError):
    """The server asks for something that the site does not allow; one line each.

    `keys` names the settings in site.yaml that would allow it: all that the server is told of a site's settings.
    """

    def __init__(self, lines: Iterable[str], keys: Iterable[str] = ()) -> None:
        super().__init__(lines)
        self.keys = tuple(dict.fromkeys(keys))


def check_experiment(experiment: Mapping[str, Any], model: ModelConfig, site: SiteConfig) -> None:
    """Refuse an experiment that would run code, open files or contact hosts that the site has not listed.

    `model` is the one that the experiment has for this site.
    """
    refused: list[_Refusal] = []
    method, encoder = experiment["method"]["name"], model.encoder
    if method not in site.methods:
        refused.append(_line("method", method, "methods", site.methods))
    if encoder.name not in site.encoders and not encoder.is_own:
        refused.append(_line("model.encoder.name", encoder.name, "encoders", site.encoders))
    for name, part in model.own_parts.items():
        if part.kind not in site.encoders:
            refused.append(_line(f"model.{name}.kind", part.kind, "encoders", site.encoders))
    weights = (*EMBEDDED_WEIGHTS, OWN_WEIGHTS) if site.weights else EMBEDDED_WEIGHTS
    if encoder.weights not in weights:
        refused.append(_line("model.encoder.weights", encoder.weights, "weights", weights))
    for name, data in experiment["data"].items():
        if data["kind"] not in (*TOLD_KINDS, OWN_KIND):
            refused.append(_line(f"data.{name}.kind", data["kind"], "data.kind", TOLD_KINDS))
        for key in sorted(OWN_FILES & set(data)):
            refused.append(_line(f"data.{name}.{key}", data[key], f"data.{key}", ()))
    for name, task in experiment.get("tasks", {}).items():
        if name not in site.tasks:
            continue  # another site's
        known = name in site.own_tasks if task["kind"] == OWN_KIND else task["kind"] in TASKS
        if not known:
            refused.append(_line(f"tasks.{name}.kind", task["kind"], "own_tasks", list(TASKS)))
    _refuse(refused)


def check_parts(method: Method, site: SiteConfig) -> None:
    """Refuse a method that shares parts that the site keeps."""
    _refuse(_line("method", part, "share", site.share) for part in _aggregated(method) if part not in site.share)


def check_sums_only(experiment: Experiment, site: SiteConfig) -> None:
    """Refuse an experiment with rows in the clear if the site only sends sums."""
    if not site.sums_only or not experiment.resolved_method.all_aggregators:
        return
    secure = experiment.secure_aggregation
    if secure is None or secure.sketch > site.sketch:
        found = f"a sketch of {secure.sketch}" if secure else "none"
        needed = f"secure_aggregation with a sketch of at most {site.sketch}"
        fault = f"secure_aggregation: this site needs {needed} (sums_only in site.yaml), found {found}"
        raise RefusalError([fault], ["sums_only"])


def check_work(experiment: Experiment, site: SiteConfig) -> None:
    """Refuse an experiment, as the site agreed to it, that takes more time or memory than the site gives."""
    [spec], method, training = experiment.specs, experiment.resolved_method, experiment.training
    data, most = experiment.data[spec.data], site.limits
    epochs = {f"method.local.{key}": value for key, value in method.local if key.endswith("epochs")}
    asked: dict[str, dict[str, float | None]] = {
        "epochs": {"clients.epochs": spec.epochs, **epochs},
        "rounds": {"rounds": experiment.rounds},
        "pixels": {f"training.batch_size times data.{spec.data}.size": prod(data.size, start=training.batch_size)},
        "width": {f"model.{key}": getattr(spec.model, key) for key in ("decoder_width", "feature_width")},
        "images": {f"data.{spec.data}.{key}": getattr(data, key, None) for key in ("train", "val")},
        "workers": {"training.workers": training.workers},
        "learning_rate": {"training.learning_rate": training.learning_rate},
        "noise": {"guard.noise": experiment.guard.noise},
    }
    _refuse(
        _too_much(where, value, key, getattr(most, key))
        for key, values in asked.items()
        for where, value in values.items()
        if value is not None and value > getattr(most, key)
    )


def check_clients(entries: Iterable[ClientEntry], site: SiteConfig) -> None:
    """Refuse an invitation that lists more clients than the site makes room for."""
    count = sum(entry.copies * len(entry.split or (entry.tasks,)) for entry in entries)
    if count > site.limits.clients:
        _refuse([_too_much("clients", count, "clients", site.limits.clients)])


def check_order(order: Order, experiment: Experiment, site: SiteConfig) -> None:
    """Refuse an order that the agreed method does not need in this round."""
    method, rounds = experiment.resolved_method, experiment.rounds
    if type(order.round) is not int or not 0 <= order.round <= rounds:
        raise RefusalError([f"round: should be from 0 to {rounds}, found {shown(order.round)}"])
    asked = {"upload": set(order.upload), "deliveries": {slot.part for slot in order.deliveries}}
    kept = [(key, part) for key, parts in asked.items() for part in sorted(parts) if not _may_cross(part, site)]
    _refuse(_line(key, part, "share", site.share) for key, part in kept)
    last = order.round == rounds
    most = {} if last else dict(method.uploads(order.round))  # less if no other client has such an encoder
    wanted = f"{experiment.method_name} in round {order.round + 1} of {rounds}, which this site has agreed to"
    if (order.finish, order.train) != (last, not last) or not order.upload.items() <= most.items():
        found = f"finish: {order.finish}, train: {order.train}, upload: {shown(order.upload)}"
        raise RefusalError([f"{wanted}, needs finish: {last}, train: {not last}, upload: {most}; found {found}"])
    if strange := asked["deliveries"] - _ever_shared(method):
        raise RefusalError([f"{wanted}, has no deliveries of {', '.join(sorted(strange))}"])


def _may_cross(part: str, site: SiteConfig) -> bool:
    """Whether a site shares a part; running statistics belong to the part of their layers."""
    return part.removesuffix("_norms") in site.share


def _ever_shared(method: Method) -> set[str]:
    """The parts that a method aggregates in any round."""
    shared = _aggregated(method)
    return {
        *shared,
        *(norms for part, norms in STATISTICS.items() if part in shared and method.batch_norm == "average"),
    }


def _aggregated(method: Method) -> list[str]:
    return [part for part in AGGREGATED if getattr(method, part)]


class _Refusal(NamedTuple):
    """What is refused, and the key in site.yaml that would allow it."""

    line: str
    key: str


def _line(where: str, found: object, key: str, allowed: Iterable[str]) -> _Refusal:
    listed = ", ".join(allowed)
    line = f"{where}: this site allows {listed or 'only its own'} ({key} in site.yaml), found {shown(found)}"
    return _Refusal(line, key)


def _too_much(where: str, found: float, key: str, most: float) -> _Refusal:
    return _Refusal(f"{where}: expected at most {most:g} (limits.{key} in site.yaml), got {found:g}", f"limits.{key}")


def _refuse(refusals: Iterable[_Refusal]) -> None:
    """Raise RefusalError if there are any."""
    if refusals := list(refusals):
        raise RefusalError((each.line for each in refusals), (each.key for each in refusals))
