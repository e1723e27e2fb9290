"""Which replies the server uses: one that cannot be used is as if its client had been away."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch
from torch import Tensor

from fedhca2.aggregation import Weights
from fedhca2.experiment.reliability import GuardBounds
from fedhca2.messages import Profile, Reply
from fedhca2.params import Part, Slot

FEW = 3  # so many rows in a round make a median of their own
NAME_LENGTH = 64
SCORES = 32
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)

Measured = Mapping[str, Mapping[Slot, float]]  # the norm of each row of each client
Norms = Mapping[str, tuple[float, ...]]  # of the rows that were accepted last, by part


@dataclass(frozen=True)
class Expected:
    """What a reply of this round should be."""

    round: int
    profiles: Mapping[str, Profile]
    parts: frozenset[Part]
    weights: Mapping[str, Weights]  # by 'client/slot'


@dataclass(frozen=True)
class Admission:
    """The replies that are used, by client and in the order of names; why others are not; and the norms after them."""

    used: dict[str, Reply]
    refused: dict[str, str]
    norms: dict[str, tuple[float, ...]] = field(default_factory=dict)


def well_formed(replies: Iterable[Reply], expected: Expected) -> tuple[dict[str, Reply], dict[str, str]]:
    """Replies of the right form, by client and in the order of names, and why others are not; no row is read."""
    sound: dict[str, Reply] = {}
    refused: dict[str, str] = {}
    for reply in replies:
        fault = fault_of(reply, expected)
        name = reply.client if isinstance(getattr(reply, "client", None), str) else "unknown"
        if fault:
            refused.setdefault(name[:NAME_LENGTH], fault)
        elif name in sound:
            refused[f"{name} (again)"] = "a client should reply once in a round, found another reply"
        else:
            sound[name] = reply
    refused = {f"{client} (again)" if client in sound else client: why for client, why in refused.items()}
    return dict(sorted(sound.items())), refused


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


def fault_of(reply: Any, expected: Expected) -> str:
    """Why a reply cannot be used, whatever it is, or nothing."""
    try:
        return _form(reply, expected) or _rows(reply, expected) or _numbers(reply, expected)
    except Exception as error:  # a reply comes from outside: nothing in it may stop the server
        return f"reply should be readable, found {type(error).__name__}: {str(error)[:200]}"


def _form(reply: Reply, expected: Expected) -> str:
    if not isinstance(reply, Reply):
        return f"should be a reply, found {type(reply).__name__}"
    if reply.client not in expected.profiles:
        return f"client should be one of {', '.join(expected.profiles)}, found {str(reply.client)[:NAME_LENGTH]!r}"
    if reply.failed:
        return f"failed: {reply.failed[:500]}"
    if reply.round != expected.round or isinstance(reply.round, bool):
        return f"round should be {expected.round}, found {str(reply.round)[:NAME_LENGTH]}"
    return ""


def _rows(reply: Reply, expected: Expected) -> str:
    layouts = expected.profiles[reply.client].layouts
    slots = {slot for slot in layouts if slot.part in expected.parts}
    if set(reply.rows) != slots:
        return f"rows should be {_listed(slots)}, found {_listed(reply.rows)}"
    for slot, row in reply.rows.items():
        numel = layouts[slot].numel
        if not isinstance(row, Tensor):
            return f"{slot}: row should be a tensor, found {type(row).__name__}"
        if row.dtype not in DTYPES or row.layout != torch.strided or row.is_meta:
            return f"{slot}: row should be of {numel} floating numbers, found {row.dtype} ({row.layout}, {row.device})"
        if row.shape != (numel,):
            return f"{slot}: row should be of {numel} floating numbers, found shape {tuple(row.shape)}"
    return ""


def _numbers(reply: Reply, expected: Expected) -> str:
    tasks = expected.profiles[reply.client].tasks
    for slot, agreement in reply.agreement.items():
        known = expected.weights.get(f"{reply.client}/{slot}")
        if known is None or len(known.value) != len(agreement):
            return f"{slot}: agreement should match the learned weights, found {len(agreement)} numbers"
        if not all(_is_number(value) and math.isfinite(value) for value in agreement):
            return f"{slot}: agreement should be finite, found {str(agreement)[:NAME_LENGTH]}"
    if not set(reply.losses) <= set(tasks) or not set(reply.metrics) <= set(tasks):
        return f"losses and metrics should be of tasks {', '.join(tasks)}, found others"
    scores = [value for values in reply.metrics.values() for value in values.values()]
    names = [name for values in reply.metrics.values() for name in values]
    if len(names) > SCORES * len(tasks) or not all(
        isinstance(name, str) and len(name) <= NAME_LENGTH for name in names
    ):
        return f"metrics should have at most {SCORES} short names for a task, found others"
    if not all(_is_number(value) for value in [*scores, *reply.losses.values(), reply.seconds]):
        return "losses, metrics and seconds should be numbers, found others"
    return ""


def _is_number(value: object) -> bool:
    return isinstance(value, (float, int)) and not isinstance(value, bool)


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


def _listed(slots: Iterable[object]) -> str:
    names = sorted(str(slot)[:NAME_LENGTH] for slot in slots)
    return ", ".join(names[:12]) + (" …" if len(names) > 12 else "") or "none"
