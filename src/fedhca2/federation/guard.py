"""Which well-formed replies the server uses, by the lengths of their rows."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median

from fedhca2.experiment.reliability import GuardBounds
from fedhca2.messages import Reply
from fedhca2.params import Slot

FEW = 3  # so many rows in a round make a median of their own

Measured = Mapping[str, Mapping[Slot, float]]  # the norm of each row of each client
Norms = Mapping[str, tuple[float, ...]]  # of the rows that were accepted last, by part


@dataclass(frozen=True)
class Admission:
    """The replies that are used, by client and in the order of names; why others are not; and the norms after them."""

    used: dict[str, Reply]
    refused: dict[str, str]
    norms: dict[str, tuple[float, ...]] = field(default_factory=dict)


def admit(replies: Mapping[str, Reply], measured: Measured, norms: Norms, bounds: GuardBounds) -> Admission:
    """Sort well-formed replies by the norms of their rows."""
    finite = [found for found in measured.values() if all(map(math.isfinite, found.values()))]
    limits = _limits(finite, norms, bounds)
    refused = {client: why for client in replies if (why := _excess(measured[client], limits))}
    used = {client: reply for client, reply in replies.items() if client not in refused}
    seen = {part: list(values) for part, values in norms.items()}
    for client in used:
        for slot, norm in measured[client].items():
            seen.setdefault(slot.part, []).append(norm)
    return Admission(used, refused, {part: tuple(values[-bounds.window :]) for part, values in seen.items()})


def _limits(measured: Iterable[Mapping[Slot, float]], norms: Norms, bounds: GuardBounds) -> dict[str, float]:
    """The largest norm of each part.

    It follows the running median, or this round's where that is larger: all updates grow together when a warm-up ends.
    """
    if not bounds.norm_factor:
        return {}
    now: dict[str, list[float]] = {}
    for found in measured:
        for slot, norm in found.items():
            now.setdefault(slot.part, []).append(norm)
    limits: dict[str, float] = {}
    for part, values in now.items():
        medians = [median(norms[part])] if norms.get(part) else []
        medians += [median(values)] if len(values) >= FEW else []
        if any(medians):
            limits[part] = bounds.norm_factor * max(medians)
    return limits


def _excess(found: Mapping[Slot, float], limits: Mapping[str, float]) -> str:
    for slot, norm in found.items():
        if not math.isfinite(norm):
            return f"{slot}: row should be finite, found NaN or infinite values"
        limit = limits.get(slot.part, math.inf)
        if norm > limit:
            return f"{slot}: norm should be at most {limit:.4g} (guard.norm_factor × the median), found {norm:.4g}"
    return ""
