"""Which replies the server uses: one that cannot be used is as if its client had been away."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedhca2.aggregation import Weights
from fedhca2.experiment.reliability import GuardBounds
from fedhca2.federation.moves import Move
from fedhca2.messages import Profile, Reply
from fedhca2.params import Part, Slot

QUIET = 1e-3  # a smaller share of what a round can move says nothing of the next: there was nothing to learn from
NAME_LENGTH = 64
SCORES = 32
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)

Moves = Mapping[str, Mapping[Slot, Move]]  # of each row of each client
Shares = Mapping[
    str, tuple[float, ...]
]  # by 'client/slot': accepted moves as shares of what was possible, the last ones


@dataclass(frozen=True)
class Expected:
    """What a reply of this round should be."""

    round: int
    profiles: Mapping[str, Profile]
    parts: frozenset[Part]
    weights: Mapping[str, Weights]  # by 'client/slot'


@dataclass(frozen=True)
class Admission:
    """The replies that are used, by client and in the order of names; why others are not; and the shares after them."""

    used: dict[str, Reply]
    refused: dict[str, str]
    shares: dict[str, tuple[float, ...]]


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


def admit(replies: Mapping[str, Reply], moves: Moves, shares: Shares, bounds: GuardBounds) -> Admission:
    """Sort well-formed replies by how far their rows moved.

    A client is judged by what it declared and by its own past, never by others, which may train on another schedule.
    """
    refused = {client: why for client in replies if (why := _excess(client, moves[client], shares, bounds))}
    used = {client: reply for client, reply in replies.items() if client not in refused}
    seen = dict(shares)
    for client in used:
        for slot, move in moves[client].items():
            if (share := _share(move)) >= QUIET:
                seen[f"{client}/{slot}"] = (*seen.get(f"{client}/{slot}", ()), share)[-bounds.window :]
    return Admission(used, refused, seen)


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


def _share(move: Move) -> float:
    """How much of what was possible a row moved; 0 where that cannot be said."""
    return move.distance / move.limit if move.followed and 0 < move.limit < math.inf else 0.0


def _excess(client: str, moves: Mapping[Slot, Move], shares: Shares, bounds: GuardBounds) -> str:
    for slot, move in moves.items():
        if not math.isfinite(move.distance):
            return f"{slot}: row should be finite, found NaN or infinite values"
        if bounds.reach and move.distance > bounds.reach * move.limit:
            far = f"at most {bounds.reach * move.limit:.4g}, what its steps and learning rates allow (guard.reach)"
            return f"{slot}: row should have moved by {far}, found {move.distance:.4g}"
        recent = shares.get(f"{client}/{slot}")
        if bounds.jump and recent and _share(move) > bounds.jump * max(recent):
            far = f"at most {bounds.jump:g} times as far as in recent rounds (guard.jump)"
            return f"{slot}: row should have moved {far}, found {_share(move) / max(recent):.4g} times"
    return ""


def _listed(slots: Iterable[object]) -> str:
    names = sorted(str(slot)[:NAME_LENGTH] for slot in slots)
    return ", ".join(names[:12]) + (" …" if len(names) > 12 else "") or "none"
