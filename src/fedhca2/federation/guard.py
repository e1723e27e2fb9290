"""The guard before the server: it decides which replies are used. A client whose reply is refused counts as absent."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite

from torch import Tensor

from fedhca2.aggregation import Rows
from fedhca2.experiment.settings import GuardBounds
from fedhca2.federation.gate import Expected, fault_of, senders, well_formed
from fedhca2.federation.moves import (
    NO_LIMIT,
    Move,
    MoveLimits,
    RowReach,
    TrainedRow,
    moves_of_parameters,
    moves_of_statistics,
    moves_of_updates,
)
from fedhca2.federation.server import ClientRow, Sent, Server, Stepped, group_rows, statistics_of
from fedhca2.messages import Profile, Reply
from fedhca2.params import Slot
from fedhca2.run_folder.records import Lateness, ServerState, SlotKey
from fedhca2.tasks import TASKS, TaskSet


@dataclass(frozen=True)
class Admission:
    """The accepted replies by client, sorted by name; the reasons against the others; and the shares afterwards."""

    used: dict[str, Reply]
    refused: dict[str, str]
    shares: dict[SlotKey, tuple[float, ...]]
    unused: tuple[str, ...]  # who sent an update in a refused reply


@dataclass(frozen=True)
class Guard:
    """Accepts or refuses replies by their form, and by how far their rows moved.

    A client is compared with what it declared and with its own past, never with others, which may have other schedules.
    """

    server: Server
    bounds: GuardBounds = field(default_factory=GuardBounds)
    reach: RowReach | None = None  # how far rows can move in a round; without it, moves are not limited
    tasks: TaskSet = TASKS
    visible: Callable[[Profile], Profile] | None = None  # what the server sees of a profile, if rows are sketches

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
        admission = self.admit(state, replies, sent, at_work)
        behind = {client: state.round - reply.round for client, reply in admission.used.items()}
        late = {client: Lateness(rounds, self.server.weight(rounds)) for client, rounds in behind.items() if rounds}
        state = replace(state, shares=admission.shares)
        state, deliveries, record = self.server.step(state, admission.used.values(), sent)
        return state, deliveries, replace(record, refused=admission.refused, unused=admission.unused, late=late)

    def admit(
        self,
        state: ServerState,
        replies: Iterable[Reply],
        sent: Sent | None = None,
        at_work: Mapping[str, int] | None = None,
    ) -> Admission:
        """Accept or refuse every reply of a round."""
        replies, at_work = list(replies), at_work or {}
        rounds = {client: at_work.get(client, state.round) for client in self.server.profiles}
        parts = {client: self.server.uploads(client, round) for client, round in rounds.items()}
        expected = Expected(state.round, self._profiles, parts, state.weights, at_work, tasks=self.tasks)
        sound, refused = well_formed(replies, expected)
        moves = self._moves(state.round, sound, sent or {})
        too_far = {client: why for client in sound if (why := self._excess(client, moves[client], state.shares))}
        used = {client: reply for client, reply in sound.items() if client not in too_far}
        shares = dict(state.shares)
        for client in used:
            for slot, move in moves[client].items():
                if move.share >= 1e-3:  # less predicts nothing: there was nothing to learn from
                    key = SlotKey(client, slot)
                    shares[key] = (*shares.get(key, ()), move.share)[-self.bounds.window :]
        refused |= too_far
        unused = tuple(client for client in senders(replies, parts) if client in refused)
        return Admission(used, refused, shares, unused)

    def faults_at_end(self, round: int, replies: Mapping[str, Reply]) -> dict[str, str]:
        """Why replies to the last orders cannot be used, by client."""
        expected = Expected(round, self.server.profiles, {}, {}, final=True, tasks=self.tasks)
        faults = {client: fault_of(reply, expected) for client, reply in replies.items()}
        return {client: fault.why for client, fault in faults.items() if fault}

    @property
    def _profiles(self) -> Mapping[str, Profile]:
        """The clients, as far as the server sees them."""
        known, visible = self.server.profiles, self.visible
        return {client: visible(profile) for client, profile in known.items()} if visible else known

    def _moves(self, round: int, replies: Mapping[str, Reply], sent: Sent) -> dict[str, dict[Slot, Move]]:
        """Measure how far every row of every client moved."""
        moves_by_client: dict[str, dict[Slot, Move]] = {client: {} for client in self.server.profiles}
        limits, profiles = MoveLimits(self.server.profiles, self.reach), self._profiles

        def rows_of(entries: list[ClientRow]) -> Rows:
            layout = profiles[entries[0].client].layouts[entries[0].slot]
            return Rows([entry.member for entry in entries], layout, [entry.row for entry in entries])

        def note(entries: list[ClientRow], moves: Iterable[Move]) -> None:
            for entry, move in zip(entries, moves, strict=True):
                moves_by_client[entry.client][entry.slot] = move

        for part in self.server.method.aggregators(round):
            for entries in group_rows(part, replies, self.server.profiles).values():
                rounds = [replies[entry.client].round for entry in entries]
                note(entries, self._trained_moves(rounds, entries, rows_of(entries), limits, sent))
                if statistics := statistics_of(entries, replies):
                    note(statistics, self._statistics_moves(rows_of(statistics)))
        return moves_by_client

    def _trained_moves(
        self,
        rounds: Sequence[int],
        entries: list[ClientRow],
        rows: Rows,
        limits: MoveLimits,
        sent: Sent,
    ) -> list[Move]:
        """Measure the moves of rows, each since its own round."""
        part = entries[0].slot.part
        updates = self.server.method.all_aggregators[part].sends == "updates"
        if self.visible and not updates:  # a sketch of parameters does not show how far they moved
            return [Move(length, NO_LIMIT, False) for length in rows.norms().tolist()]
        trained = [
            TrainedRow(
                entry.row,
                start_of_training(self.server, entry, sent),
                limits.of(entry.client, entry.slot, range(round, round + 1)),
                limits.of(entry.client, entry.slot, range(round + 1)),
            )
            for entry, round in zip(entries, rounds, strict=True)
        ]
        return moves_of_updates(rows, trained) if updates else moves_of_parameters(part, rows, trained)

    def _statistics_moves(self, rows: Rows) -> list[Move]:
        if self.reach is None:
            return [Move(length, NO_LIMIT, False) for length in rows.norms().tolist()]
        return moves_of_statistics(rows)

    def _excess(
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


def start_of_training(server: Server, entry: ClientRow, sent: Sent) -> Tensor | None:
    """The row that a client's training started from, if the server knows it: it only holds rows that it sent."""
    delivery = sent.get(entry.client, {}).get(entry.slot)
    return delivery.row if delivery and server.method.local.replaces else None
