"""The guard before the server: it decides which replies are used. A client whose reply is refused counts as absent."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite

from torch import Tensor

from fedhca2.aggregation import Rows
from fedhca2.experiment.settings import GuardBounds
from fedhca2.federation.gate import Expected, attempt, check_replies, check_reply, senders
from fedhca2.federation.moves import Move, MoveLimits, RowReach, TrainedRow, moves_of_parameters, moves_of_statistics
from fedhca2.federation.server import ClientRow, Sent, Server, Stepped, group_rows, statistics_of
from fedhca2.messages import Reply
from fedhca2.params import Slot
from fedhca2.run_folder.records import Lateness, ServerState, SlotKey
from fedhca2.tasks import TASKS, TaskSet


@dataclass(frozen=True)
class Guard:
    """Accepts or refuses replies by their form, and by how far their rows moved.

    A client is compared with what it declared and with its own past, never with others, which may have other schedules.
    """

    server: Server
    bounds: GuardBounds = field(default_factory=GuardBounds)
    reach: RowReach | None = None  # how far rows can move in a round; without it, moves are not limited
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
                moves = self._measure_trained_moves(entries, replies, sent)
                if statistics := statistics_of(entries, replies):
                    rows = self._rows(statistics)
                    moves += _lengths(rows) if self.reach is None else moves_of_statistics(rows)
                for entry, move in zip([*entries, *statistics], moves, strict=True):
                    moves_by_client[entry.client][entry.slot] = move
        return moves_by_client

    def _rows(self, entries: Sequence[ClientRow]) -> Rows:
        layout = self.server.visible[entries[0].client].layouts[entries[0].slot]
        return Rows([entry.member for entry in entries], layout, [entry.row for entry in entries])

    def _measure_trained_moves(
        self, entries: Sequence[ClientRow], replies: Mapping[str, Reply], sent: Sent
    ) -> list[Move]:
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
            trained.append(TrainedRow(entry.row, start, limit, ever))
        if updates:
            lengths = rows.norms().tolist()
            return [Move(length, each.limit, True) for length, each in zip(lengths, trained, strict=True)]
        return moves_of_parameters(part, rows, trained)

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
