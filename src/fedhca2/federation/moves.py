"""How far a client's rows moved in a round, and which replies to use."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from statistics import median, median_low

import torch
from torch import Tensor

from fedhca2.aggregation import Rows
from fedhca2.clients.exchange import ALIKE
from fedhca2.experiment.reliability import GuardBounds
from fedhca2.federation.limits import NO_LIMIT, Limit
from fedhca2.messages import Reply
from fedhca2.params import Part, Slot

STATISTICS = 100.0  # honest statistics differ by data and by training; a factor of 7 has been observed
QUIET = 1e-3  # a smaller share of what a round can move predicts nothing: there was nothing to learn from
BY_LENGTH = f"{ALIKE:g} times the others' usual length"


@dataclass(frozen=True)
class Move:
    """How far a row is from the start of its client's training, and the farthest that training can move it.

    `followed`: whether the start is known, so that moves of several rounds can be compared. `by` describes the limit.
    """

    distance: float
    limit: Limit
    followed: bool
    by: str = "what its steps and learning rates allow"


@dataclass(frozen=True)
class Trained:
    """A row after training, before it if the server knows that, and the farthest that it can have moved."""

    row: Tensor
    start: Tensor | None
    limit: Limit  # in this round
    ever: Limit  # since the first round

    def rounding(self, length: float) -> Limit:
        """What rounding may add to the distance of rows of this length."""
        return Limit(0.0, 0.0, 2 * torch.finfo(self.row.dtype).eps * length)


def moves_of_updates(lengths: Sequence[float], trained: Sequence[Trained]) -> list[Move]:
    """Updates are already moves."""
    return [Move(length, each.limit, True) for length, each in zip(lengths, trained, strict=True)]


def moves_of_parameters(part: Part, rows: Rows, trained: Sequence[Trained]) -> list[Move]:
    """Compare parameters with what their client was sent before training, if the server knows that."""
    known = [number for number, each in enumerate(trained) if each.start is not None]
    moves = dict(zip(known, _since_start(rows, trained, known), strict=True)) if known else {}
    if len(known) < len(trained):
        moves = dict(enumerate(_since_first(part, rows, trained))) | moves
    return [moves[number] for number in range(len(trained))]


def _since_start(rows: Rows, trained: Sequence[Trained], known: Sequence[int]) -> list[Move]:
    some = rows if len(known) == len(trained) else _some(rows, trained, known)
    starts = [start for each in trained if (start := each.start) is not None]
    lengths = {id(start): float(torch.linalg.vector_norm(start, dtype=torch.float64)) for start in starts}
    rounding = [trained[number].rounding(lengths[id(start)]) for number, start in zip(known, starts, strict=True)]
    distances = some.norms(starts).tolist()
    return [
        Move(distance, trained[number].limit + added, True)
        for number, distance, added in zip(known, distances, rounding, strict=True)
    ]


def _since_first(part: Part, rows: Rows, trained: Sequence[Trained]) -> list[Move]:
    """Without known starts, limits apply since the first round.

    Encoders are compared with each other, since all start equal. Decoders and heads are compared by length, since all
    start from one distribution.
    """
    lengths = rows.norms().tolist()
    finite = [number for number, length in enumerate(lengths) if isfinite(length)]
    moves = [Move(length, NO_LIMIT, False) for length in lengths]
    if part == "encoder" and len(finite) > 1:
        for number, distance in zip(finite, _from_most_others(_some(rows, trained, finite)), strict=True):
            farthest = max((trained[other].ever for other in finite if other != number), key=lambda one: one.within(1))
            limit = trained[number].ever + farthest + trained[number].rounding(lengths[number])
            moves[number] = Move(distance, limit, False)
    elif part != "encoder" and finite:
        usual = Limit(0.0, 0.0, ALIKE * median(lengths[number] for number in finite))
        for number in finite:
            moves[number] = Move(lengths[number], usual + trained[number].ever, False, BY_LENGTH)
    return moves


def moves_of_statistics(lengths: Sequence[float]) -> list[Move]:
    """Compare running statistics by length with the others': they follow the data, not the learning rate."""
    moves = []
    for number, length in enumerate(lengths):
        others = [other for other in (*lengths[:number], *lengths[number + 1 :]) if isfinite(other)]
        usual = Limit(0.0, 0.0, STATISTICS * median(others)) if others else NO_LIMIT
        moves.append(Move(length, usual, False, f"{STATISTICS:g} times the others' usual length"))
    return moves


def _some(rows: Rows, trained: Sequence[Trained], chosen: Sequence[int]) -> Rows:
    return Rows([rows.members[number] for number in chosen], rows.layout, [trained[number].row for number in chosen])


def _from_most_others(rows: Rows) -> list[float]:
    """How far each row is from the nearest half of the others."""
    gram = rows.products("differences", whole=True)[0]
    squares = gram.diagonal()
    distances = (squares[:, None] + squares - 2 * gram).clamp(min=0).sqrt()
    return [median_low(each[:number] + each[number + 1 :]) for number, each in enumerate(distances.tolist())]


Moves = Mapping[str, Mapping[Slot, Move]]  # of each row of each client
Shares = Mapping[str, tuple[float, ...]]  # by 'client/slot': recent moves as shares of the possible ones


@dataclass(frozen=True)
class Admission:
    """The accepted replies by client, sorted by name; the reasons against the others; and the shares afterwards."""

    used: dict[str, Reply]
    refused: dict[str, str]
    shares: dict[str, tuple[float, ...]]


def admit(replies: Mapping[str, Reply], moves: Moves, shares: Shares, bounds: GuardBounds) -> Admission:
    """Accept or refuse well-formed replies by how far their rows moved.

    A client is compared with what it declared and with its own past, never with others, which may have other schedules.
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
    """The share of the possible move that a row made; 0 if it is unknown."""
    possible = move.limit.within(1.0)
    return move.distance / possible if move.followed and 0 < possible < inf else 0.0


def _excess(client: str, moves: Mapping[Slot, Move], shares: Shares, bounds: GuardBounds) -> str:
    for slot, move in moves.items():
        if not isfinite(move.distance):
            return f"{slot}: row should be finite, found NaN or infinite values"
        if bounds.reach and move.distance > move.limit.within(bounds.reach):
            far = f"at most {move.limit.within(bounds.reach):.4g}, {move.by} (guard.reach, guard.images)"
            return f"{slot}: row should have moved by {far}, found {move.distance:.4g}"
        recent = shares.get(f"{client}/{slot}")
        if bounds.jump and recent and _share(move) > bounds.jump * max(recent):
            far = f"at most {bounds.jump:g} times as far as in recent rounds (guard.jump)"
            return f"{slot}: row should have moved {far}, found {_share(move) / max(recent):.4g} times"
    return ""
