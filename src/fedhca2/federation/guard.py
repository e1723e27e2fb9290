"""Which replies the server uses: one that cannot be used is as if its client had been away."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from fedhca2.experiment.reliability import GuardBounds
from fedhca2.federation.moves import Move
from fedhca2.messages import Reply
from fedhca2.params import Slot

QUIET = 1e-3  # a smaller share of what a round can move says nothing of the next: there was nothing to learn from

Moves = Mapping[str, Mapping[Slot, Move]]  # of each row of each client
Shares = Mapping[str, tuple[float, ...]]  # by 'client/slot': recent moves as shares of what was possible


@dataclass(frozen=True)
class Admission:
    """The replies that are used, by client and in the order of names; why others are not; and the shares after them."""

    used: dict[str, Reply]
    refused: dict[str, str]
    shares: dict[str, tuple[float, ...]]


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


def _share(move: Move) -> float:
    """How much of what was possible a row moved; 0 where that cannot be said."""
    possible = move.limit.within(1.0)
    return move.distance / possible if move.followed and 0 < possible < math.inf else 0.0


def _excess(client: str, moves: Mapping[Slot, Move], shares: Shares, bounds: GuardBounds) -> str:
    for slot, move in moves.items():
        if not math.isfinite(move.distance):
            return f"{slot}: row should be finite, found NaN or infinite values"
        if bounds.reach and move.distance > move.limit.within(bounds.reach):
            far = f"at most {move.limit.within(bounds.reach):.4g}, {move.by} (guard.reach)"
            return f"{slot}: row should have moved by {far}, found {move.distance:.4g}"
        recent = shares.get(f"{client}/{slot}")
        if bounds.jump and recent and _share(move) > bounds.jump * max(recent):
            far = f"at most {bounds.jump:g} times as far as in recent rounds (guard.jump)"
            return f"{slot}: row should have moved {far}, found {_share(move) / max(recent):.4g} times"
    return ""
