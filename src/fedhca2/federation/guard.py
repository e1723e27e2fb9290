"""The guard before the server: it decides which replies are used, by their form and by how far their rows moved.

A client whose reply is refused counts as absent.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf, isfinite, sqrt
from statistics import median, median_low

import torch
from torch import Tensor

from fedhca2.aggregation import Rows
from fedhca2.clients import Privacy, Training
from fedhca2.clients.exchange import ALIKE, noise_reach, trained_reach
from fedhca2.experiment import Experiment
from fedhca2.experiment.settings import GuardBounds
from fedhca2.federation.gate import Expected, attempt, check_replies, check_reply, senders
from fedhca2.federation.server import ClientRow, Sent, Server, Stepped, group_rows, statistics_of
from fedhca2.messages import Profile, Reply
from fedhca2.params import Part, Slot
from fedhca2.run_folder.records import Lateness, ServerState, SlotKey
from fedhca2.tasks import TASKS, TaskSet


@dataclass(frozen=True)
class Limit:
    """The farthest that a row can move: by its steps, within its clip, plus an allowance for what is not training.

    A guard may allow only a share of the steps' part. The parts for clip, noise and rounding are not scaled.

    >>> Limit(steps=20.0, clip=5.0, allowance=1.0).within(0.1)
    3.0
    """

    steps: float
    clip: float = inf
    allowance: float = 0.0

    def within(self, share: float) -> float:
        """The farthest move with this share of the steps' part."""
        return min(share * self.steps, self.clip) + self.allowance

    def __add__(self, other: "Limit") -> "Limit":
        return Limit(self.steps + other.steps, self.clip + other.clip, self.allowance + other.allowance)


NO_LIMIT = Limit(inf)


@dataclass(frozen=True)
class Reach:
    """How far local training can move rows, given the steps, learning rates and noise that an experiment declares."""

    training: Training
    privacy: Privacy
    rounds: int
    epochs: Mapping[str, int]
    own_noise: float = 0.0  # standard deviation of the noise that sites may add to each value on their own
    round_steps: Mapping[str, int] = field(default_factory=dict)  # in a round, of clients whose rounds are not epochs
    images: Mapping[str, int] = field(default_factory=dict)  # the most that clients have, as far as this is declared

    @classmethod
    def of(cls, experiment: Experiment) -> "Reach":
        """The reach of an experiment's clients."""
        guard = experiment.guard
        epochs = {spec.name: spec.epochs for spec in experiment.specs if spec.epochs}
        steps = {spec.name: spec.steps for spec in experiment.specs if spec.steps}
        return cls(experiment.training, experiment.privacy, experiment.rounds, epochs, guard.noise, steps, guard.images)

    def steps(self, profile: Profile, median: int) -> int:
        """Steps of an epoch that a client is believed to take: as many as its images, within what is declared.

        If nothing is declared for it, within twice the lower median of what all clients say, which no client can raise
        by itself. Honest steps move a row by at most an eighth of what any gradients could do, so that whoever has up
        to fifteen times the median's images passes with this, and a lie gains no more than a factor of two
        (docs/security.md).
        """
        most = self.images.get(profile.client, 2 * median)
        return min(profile.samples, most) // self.training.batch_size

    def of_row(self, profile: Profile, part: Part, numel: int, rounds: range, median: int) -> Limit:
        """The farthest that a part's row of `numel` values can move in these rounds, by the steps that are believed.

        The number of images in a profile is what its client says; `median` is that of all clients.
        """
        batches = self.steps(profile, median)
        steps = self.round_steps.get(profile.client) or self.epochs[profile.client] * batches
        taken = range(rounds.start * steps, rounds.stop * steps)
        moved = trained_reach(self.training, batches, taken, self.rounds * steps, part, numel) if batches else 0.0
        clip = inf if self.privacy.clip is None else self.privacy.clip * len(rounds)
        noise = noise_reach(max(self.own_noise, self.privacy.deviation), len(rounds), numel)
        return Limit(moved, clip, noise)


@dataclass(frozen=True)
class LargestMove:
    """How far a value can move in a round, as the root mean square over a row; the same for all clients."""

    largest: float

    def of_row(self, profile: Profile, part: Part, numel: int, rounds: range, median: int) -> Limit:
        """The farthest that a row of `numel` values can move in these rounds."""
        return Limit(self.largest * sqrt(numel) * len(rounds))


@dataclass(frozen=True)
class MoveLimits:
    """The farthest that these clients' rows can move."""

    profiles: Mapping[str, Profile]
    reach: Reach | LargestMove

    @cached_property
    def _median(self) -> int:
        return median_low([profile.samples for profile in self.profiles.values()] or [0])

    def of(self, client: str, slot: Slot, rounds: range) -> Limit:
        """The farthest that a client's row can have moved in these rounds."""
        profile = self.profiles[client]
        return self.reach.of_row(profile, slot.part, profile.layouts[slot].numel, rounds, self._median)


@dataclass(frozen=True)
class Move:
    """How far a row is from the start of its client's training, and the farthest that training can move it.

    `followed`: whether the start is known, so that moves of several rounds can be compared. `by` describes the limit.
    """

    distance: float
    limit: Limit = NO_LIMIT
    followed: bool = False
    by: str = "what its steps and learning rates allow"

    @property
    def share(self) -> float:
        """The share of the possible move that a row made; 0 if it is unknown."""
        possible = self.limit.within(1.0)
        return self.distance / possible if self.followed and 0 < possible < inf else 0.0


@dataclass(frozen=True)
class _TrainedRow:
    """A row after training, before it if the server knows that, and the farthest that it can have moved."""

    row: Tensor
    start: Tensor | None
    limit: Limit  # in this round
    ever: Limit  # since the first round

    def rounding(self, length: float) -> Limit:
        """What rounding may add to the distance of rows of this length."""
        return Limit(0.0, 0.0, 2 * torch.finfo(self.row.dtype).eps * length)


@dataclass(frozen=True)
class Guard:
    """Accepts or refuses replies by their form, and by how far their rows moved.

    A client is compared with what it declared and with its own past, never with others, which may have other schedules.
    """

    server: Server
    bounds: GuardBounds = field(default_factory=GuardBounds)
    reach: Reach | LargestMove | None = None  # how far rows can move in a round; without it, moves are not limited
    tasks: TaskSet = TASKS

    def step(
        self,
        state: ServerState,
        replies: Iterable[Reply],
        sent: Sent | None = None,
        at_work: Mapping[str, int] | None = None,
    ) -> Stepped:
        """One round of the server with the replies that can be used; the record names the others, and late ones.

        :param sent: what clients took before they trained.
        :param at_work: the rounds of orders that clients got in earlier rounds and had not answered.
        """
        replies, at_work = list(replies), at_work or {}
        rounds = {client: at_work.get(client, state.round) for client in self.server.profiles}
        parts = {client: self.server.uploads(client, round) for client, round in rounds.items()}
        expected = Expected(state.round, self.server.visible, parts, state.weights, at_work, tasks=self.tasks)
        valid, refused = check_replies(replies, expected)
        moves = self._measure_moves(state.round, valid, sent or {})
        too_far = {client: why for client in valid if (why := self._find_excess(client, moves[client], state.shares))}
        used = {client: reply for client, reply in valid.items() if client not in too_far}
        shares = dict(state.shares)
        for client in used:
            for slot, move in moves[client].items():
                if move.share >= 1e-3:  # less predicts nothing: there was nothing to learn from
                    key = SlotKey(client, slot)
                    shares[key] = (*shares.get(key, ()), move.share)[-self.bounds.window :]
        refused |= too_far
        unused = tuple(client for client in senders(replies, parts) if client in refused)
        behind = {client: state.round - reply.round for client, reply in used.items()}
        late = {client: Lateness(rounds, self.server.weight(rounds)) for client, rounds in behind.items() if rounds}
        state, deliveries, record = self.server.step(replace(state, shares=shares), used.values(), sent)
        return state, deliveries, replace(record, refused=refused, unused=unused, late=late)

    def faults_at_end(self, round: int, replies: Mapping[str, Reply]) -> dict[str, str]:
        """Why replies to the last orders cannot be used, by client."""
        expected = Expected(round, self.server.profiles, {}, {}, final=True, tasks=self.tasks)
        faults = {client: attempt(check_reply, reply, expected) for client, reply in replies.items()}
        return {client: fault.why for client, fault in faults.items() if fault}

    def _measure_moves(self, round: int, replies: Mapping[str, Reply], sent: Sent) -> dict[str, dict[Slot, Move]]:
        """Measure how far every row of every client moved."""
        moves_by_client: dict[str, dict[Slot, Move]] = {client: {} for client in self.server.profiles}
        for part in self.server.method.aggregators(round):
            for entries in group_rows(part, replies, self.server.profiles).values():
                moves = self._trained_moves(entries, replies, sent)
                if statistics := statistics_of(entries, replies):
                    rows = self._rows(statistics)
                    moves += _lengths(rows) if self.reach is None else _measure_statistics(rows)
                for entry, move in zip([*entries, *statistics], moves, strict=True):
                    moves_by_client[entry.client][entry.slot] = move
        return moves_by_client

    def _rows(self, entries: Sequence[ClientRow]) -> Rows:
        layout = self.server.visible[entries[0].client].layouts[entries[0].slot]
        return Rows([entry.member for entry in entries], layout, [entry.row for entry in entries])

    def _trained_moves(self, entries: Sequence[ClientRow], replies: Mapping[str, Reply], sent: Sent) -> list[Move]:
        """Measure the moves of rows, each since its own round."""
        part, rows = entries[0].slot.part, self._rows(entries)
        updates = self.server.method.all_aggregators[part].sends == "updates"
        if self.reach is None or (self.server.sees_sketches and not updates):  # which do not show a move
            return _lengths(rows)
        limits, trained = MoveLimits(self.server.profiles, self.reach), []
        for entry in entries:
            round, start = replies[entry.client].round, start_of_training(self.server, entry, sent)
            rounds = range(round, round + 1), range(round + 1)
            limit, ever = (limits.of(entry.client, entry.slot, each) for each in rounds)
            trained.append(_TrainedRow(entry.row, start, limit, ever))
        if updates:
            lengths = rows.norms().tolist()
            return [Move(length, each.limit, True) for length, each in zip(lengths, trained, strict=True)]
        return _measure_parameters(part, rows, trained)

    def _find_excess(
        self, client: str, moves: Mapping[Slot, Move], shares: Mapping[SlotKey, tuple[float, ...]]
    ) -> str | None:
        """Why a client's rows are refused; None if they are not."""
        reach, jump = self.bounds.reach, self.bounds.jump
        for slot, move in moves.items():
            if not isfinite(move.distance):
                return f"{slot}: expected finite values, got NaN or infinite ones"
            if reach and move.distance > move.limit.within(reach):
                far = f"at most {move.limit.within(reach):.4g}, {move.by} (guard.reach, guard.images)"
                return f"{slot}: expected a move of {far}, got {move.distance:.4g}"
            recent = shares.get(SlotKey(client, slot))
            if jump and recent and move.share > jump * max(recent):
                far = f"at most {jump:g} times as far as in recent rounds (guard.jump)"
                return f"{slot}: expected a move {far}, got {move.share / max(recent):.4g} times"
        return None


def _lengths(rows: Rows) -> list[Move]:
    """Moves by the rows' lengths, which may have any finite value."""
    return [Move(length) for length in rows.norms().tolist()]


def start_of_training(server: Server, entry: ClientRow, sent: Sent) -> Tensor | None:
    """The row that a client's training started from, if the server knows it: it only holds rows that it sent."""
    delivery = sent.get(entry.client, {}).get(entry.slot)
    return delivery.row if delivery and server.method.local.replaces else None


def _measure_parameters(part: Part, rows: Rows, trained: Sequence[_TrainedRow]) -> list[Move]:
    """Compare parameters with what their client was sent before training, if the server knows that."""
    known = [number for number, each in enumerate(trained) if each.start is not None]
    moves = dict(enumerate(_measure_since_first(part, rows, trained))) if len(known) < len(trained) else {}
    if known:
        moves |= zip(known, _measure_since_start(rows, trained, known), strict=True)
    return [moves[number] for number in range(len(trained))]


def _measure_since_start(rows: Rows, trained: Sequence[_TrainedRow], known: Sequence[int]) -> list[Move]:
    selected = rows if len(known) == len(trained) else _select(rows, trained, known)
    starts = [start for each in trained if (start := each.start) is not None]
    lengths = [float(torch.linalg.vector_norm(start, dtype=torch.float64)) for start in starts]
    return [
        Move(distance, trained[number].limit + trained[number].rounding(length), True)
        for number, length, distance in zip(known, lengths, selected.norms(starts).tolist(), strict=True)
    ]


def _measure_since_first(part: Part, rows: Rows, trained: Sequence[_TrainedRow]) -> list[Move]:
    """Without known starts, limits apply since the first round.

    Encoders are compared with each other, since all start equal. Decoders and heads are compared by length, since all
    start from one distribution.
    """
    lengths = rows.norms().tolist()
    moves = [Move(length) for length in lengths]
    finite = [number for number, length in enumerate(lengths) if isfinite(length)]
    if part == "encoder" and len(finite) > 1:
        for number, distance in zip(finite, _measure_to_most_others(_select(rows, trained, finite)), strict=True):
            farthest = max((trained[other].ever for other in finite if other != number), key=lambda one: one.within(1))
            limit = trained[number].ever + farthest + trained[number].rounding(lengths[number])
            moves[number] = Move(distance, limit)
    elif part != "encoder" and finite:
        usual = Limit(0.0, 0.0, ALIKE * median(lengths[number] for number in finite))
        by = f"{ALIKE:g} times the others' usual length"
        for number in finite:
            moves[number] = Move(lengths[number], usual + trained[number].ever, by=by)
    return moves


def _measure_statistics(rows: Rows) -> list[Move]:
    """Compare running statistics by length with the others': they follow the data, not the learning rate.

    Honest statistics differ by data and by training; a factor of 7 has been observed.
    """
    times, lengths, moves = 100.0, rows.norms().tolist(), []
    for number, length in enumerate(lengths):
        others = [other for other in (*lengths[:number], *lengths[number + 1 :]) if isfinite(other)]
        usual = Limit(0.0, 0.0, times * median(others)) if others else NO_LIMIT
        moves.append(Move(length, usual, by=f"{times:g} times the others' usual length"))
    return moves


def _select(rows: Rows, trained: Sequence[_TrainedRow], chosen: Sequence[int]) -> Rows:
    return Rows([rows.members[number] for number in chosen], rows.layout, [trained[number].row for number in chosen])


def _measure_to_most_others(rows: Rows) -> list[float]:
    """How far each row is from the nearest half of the others."""
    gram = rows.products("differences", whole=True)[0]
    squares = gram.diagonal()
    distances = (squares[:, None] + squares - 2 * gram).clamp(min=0).sqrt()
    return [median_low(each[:number] + each[number + 1 :]) for number, each in enumerate(distances.tolist())]
