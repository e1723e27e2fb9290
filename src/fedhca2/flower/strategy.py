"""A Flower strategy for clients with different tasks: every method of the catalogue, with your own apps and model."""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import sqrt
from pathlib import Path
from secrets import token_hex

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from torch import Tensor

from fedhca2.clients import load_state, save_state
from fedhca2.experiment.reliability import GuardBounds, Participation
from fedhca2.federation.flower.records import (
    OWN,
    Wire,
    decode_new_profile,
    decode_reply,
    encode_orders,
    header_of,
    profile_as_data,
    to_rows,
)
from fedhca2.federation.foreign_text import Refused, plain
from fedhca2.federation.gate import SCORE, SCORES
from fedhca2.federation.limits import Limit
from fedhca2.federation.server import Server
from fedhca2.flower.client import METRICS, NOTHING_TAKEN, RUN, Terms
from fedhca2.flower.roster import Roster, read
from fedhca2.messages import Addend, Delivery, Order, Profile, Reply
from fedhca2.methods import Method, resolve
from fedhca2.objectives import Objective
from fedhca2.params import Layout, Slot, flatten
from fedhca2.run_folder.checkpoints import progress_as_state, progress_from_state
from fedhca2.run_folder.records import Progress

log = logging.getLogger("flwr")  # which Flower shows
DEFAULT_GUARD = GuardBounds()


@dataclass(frozen=True)
class LargestMove:
    """How far a value can move in a round, as the root mean square over a row; the same for all clients."""

    largest: float

    def of_row(self, profile: Profile, numel: int, rounds: range, median: int) -> Limit:
        """The farthest that a row of `numel` values can move in these rounds."""
        return Limit(self.largest * sqrt(numel) * len(rounds))


class Federated(Strategy):
    """A method of the catalogue, by name or as a `Method`, with its settings: `Federated("fedprox", mu=0.1)`.

    Clients answer with `FlowerClient`. A reply that is late, malformed or refused by the guard counts as none: its
    client keeps its own model and weights, and gets its rows when it is back.
    """

    def __init__(
        self,
        method: str | Method,
        *,
        save_to: Path | str | None = None,
        min_clients: int = 2,
        fraction: float = 1.0,
        evaluate_every: int = 1,
        largest_move: float = 1.0,
        guard: GuardBounds = DEFAULT_GUARD,
        wire: Wire = "float32",
        **settings: object,
    ) -> None:
        """`save_to` is a file with all that must survive: if it exists, `start` continues from it.

        A round begins with `min_clients` clients or more, and asks a `fraction` of those that are there. The server
        sends the last rows with an evaluation after the last round, and others after every `evaluate_every` rounds (0:
        none). The guard refuses replies that moved by more than `largest_move` per value, as a root mean square.
        """
        if isinstance(method, Method) and settings:
            raise ValueError(f"a Method has its settings in itself, found {', '.join(settings)} beside it")
        self.method = method if isinstance(method, Method) else resolve(method, settings)
        self.name = "method" if isinstance(method, Method) else method
        if fault := unsuited(self.method):
            raise ValueError(f"{self.name}: {fault}")
        self.save_to = Path(save_to) if save_to else None
        self.min_clients, self.evaluate_every, self.wire = min_clients, evaluate_every, wire
        self.participation = Participation(fraction=fraction)
        self.guard, self.reach = guard, LargestMove(largest_move)
        self.timeout, self.rounds = 3600.0, 0  # of a message, and in all, if `start` was told
        self.run = token_hex(16)  # clients keep their state under this name
        self.progress = Progress()
        self.roster = Roster()
        self.numbers: dict[str, int] = {}  # of the rows that wait for each client: the rounds they are made from
        self.taken: dict[str, int] = {}  # of the last rows that each client took
        if self.save_to and self.save_to.exists():
            self._restore(self.save_to)

    @property
    def server(self) -> Server:
        """Our server for the clients that are known; its state is in `progress`."""
        method = self.method.over(self.rounds) if self.rounds else self.method
        return Server(method, self.roster.profiles.values(), self.guard, self.reach)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run the rounds that are left up to `num_rounds`.

        `initial_arrays` is the state dict of the encoder that clients of this layout start from; without it they start
        from their own. Every client has a model of its own, so the result has metrics, and no arrays.
        """
        if evaluate_fn:
            raise ValueError("evaluate_fn should be None: there is no common model; clients score theirs in evaluate")
        self.rounds, self.timeout = num_rounds, timeout
        arrays, done = initial_arrays or ArrayRecord(), self.progress.state.round
        if done >= num_rounds:  # they may still wait for the last rows
            self.roster.meet(grid, timeout, self.min_clients)
            messages = self.configure_evaluate(done, arrays, evaluate_config or ConfigRecord(), grid)
            scores = self.aggregate_evaluate(done, grid.send_and_receive(messages, timeout=timeout))
            return Result(evaluate_metrics_clientapp={done: scores} if scores else {})
        result = super().start(grid, arrays, num_rounds - done, timeout, train_config, evaluate_config)
        for metrics in (result.train_metrics_clientapp, result.evaluate_metrics_clientapp):
            renumbered = {round + done: record for round, record in metrics.items()}
            metrics.clear()
            metrics.update(renumbered)
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Meet new nodes, and send every client of this round its rows."""
        self.roster.meet(grid, self.timeout, self.min_clients)
        self._offer(arrays)
        server, round = self.server, self.progress.state.round
        chosen = self.participation.choose(sorted(self.roster.nodes.values()), round, seed=0)
        log.info("round %d: %s", round + 1, ", ".join(chosen))
        orders = {client: Order(round, self._rows(client), upload=server.uploads(client, round)) for client in chosen}
        return self._messages(orders, "train", config)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Learn the weights and aggregate; returns every client's losses as 'client/task'."""
        readable = [reply for message in replies if (reply := self._reply(message))]
        state, deliveries, record = self.server.step(self.progress.state, readable, self.progress.pending)
        for client, why in (*record.refused.items(), *record.dropped.items()):
            log.warning("round %d continues without %s: %s", record.round + 1, client, why)
        self.progress = Progress(state, {**self.progress.pending, **deliveries})
        self.numbers |= dict.fromkeys(deliveries, state.round)
        self._save()
        used = [reply for reply in readable if reply.client not in record.refused]
        losses = {f"{reply.client}/{task}": float(loss) for reply in used for task, loss in reply.losses.items()}
        return None, MetricRecord(dict(losses)) if losses else None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send every client the rows that wait for it, to score the model with them."""
        done = self.progress.state.round
        if done != self.rounds and (not self.evaluate_every or done % self.evaluate_every):
            return []
        self.roster.meet(grid, self.timeout)
        orders = {
            client: Order(done, self._rows(client), finish=done == self.rounds, evaluate=True, train=False)
            for client in sorted(self.roster.nodes.values())
        }
        return self._messages(orders, "evaluate", config)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Every client's scores as 'client/score': scores of different tasks have no common mean."""
        scores = {name: value for message in replies for name, value in self._scores(message).items()}
        self._save()
        return MetricRecord(dict(scores)) if scores else None

    def summary(self) -> None:
        """Log the method and the settings."""
        log.info("\t├── Method: %s", self.name)
        log.info("\t├── Clients: %d or more, a fraction of %g", self.min_clients, self.participation.fraction)
        log.info("\t└── Rounds done: %d", self.progress.state.round)

    def _offer(self, arrays: ArrayRecord) -> None:
        """Let clients that have nothing yet start from these values."""
        if not arrays:
            return
        given: Mapping[str, Tensor] = arrays.to_torch_state_dict()
        rows: dict[Layout, Tensor] = {}
        for client in self.roster.nodes.values():
            layouts = self.roster.profiles[client].layouts
            slots = [slot for slot in (Slot("encoder"), Slot("encoder_norms")) if _fits(layouts.get(slot), given)]
            for slot in slots:
                rows.setdefault(layouts[slot], flatten(given, layouts[slot]))
            if client not in self.numbers and slots:
                first = {slot: Delivery("nothing", (Addend(rows[layouts[slot]]),)) for slot in slots}
                self.progress = replace(self.progress, pending={**self.progress.pending, client: first})
                self.numbers[client] = 0
        if not rows:
            raise ValueError("initial_arrays should have the names and shapes of a client's encoder, found others")

    def _rows(self, client: str) -> Mapping[Slot, Delivery]:
        """The rows that a client has not taken yet."""
        waiting = self.numbers.get(client, NOTHING_TAKEN) > self.taken.get(client, NOTHING_TAKEN)
        return self.progress.pending.get(client, {}) if waiting else {}

    def _messages(self, orders: Mapping[str, Order], kind: str, config: ConfigRecord) -> list[Message]:
        """One message for each node: rows that several get are one array in all of them."""
        node_of = {client: node for node, client in self.roster.nodes.items()}
        local = self.method.local
        messages = []
        for client, content in encode_orders(orders, self.wire, {}).items():
            number = self.numbers[client] if orders[client].deliveries else NOTHING_TAKEN
            content[RUN] = Terms(self.run, self.name, self.wire, local.anchor, local.pull, number).as_record()
            content["config"] = config
            messages.append(Message(content, node_of[client], kind))
        return messages

    def _reply(self, message: Message) -> Reply | None:
        """A client's reply, if it can be read."""
        client = self._sender(message)
        if not client:
            return None
        profile = self.roster.profiles[client]
        reply = read(lambda: decode_reply(header_of(message.content), to_rows(message.content).get(OWN), profile))
        if isinstance(reply, Refused):
            log.warning("%s is left out: %s", client, reply.why)
            return None
        if reply.declined:
            log.warning("%s: %s", client, reply.declined)
        return reply

    def _scores(self, message: Message) -> dict[str, float]:
        """A client's scores, if it has any."""
        client = self._sender(message)
        if not client:
            return {}
        record = message.content.metric_records.get(METRICS, MetricRecord())
        sound = {name: value for name, value in record.items() if SCORE.fullmatch(name) and isinstance(value, float)}
        most = SCORES * len(self.roster.profiles[client].tasks)
        if len(sound) != len(record) or len(record) > most:
            log.warning("%s: scores should be at most %d numbers with short names, found others", client, most)
            return {}
        return {f"{client}/{name}": value for name, value in sound.items()}

    def _sender(self, message: Message) -> str | None:
        """The client that sent an answer, with a note of the rows that it has taken; None if it is none."""
        node = message.metadata.src_node_id
        client = self.roster.nodes.get(node)
        if message.has_error() or client is None:
            why = plain(str(message.error.reason)) if message.has_error() else "it is not a client"
            log.warning("%s is left out: %s", client or f"node {node}", why)
            return None
        taken = message.content.config_records.get(RUN, ConfigRecord()).get("taken")
        if type(taken) is int and taken <= self.numbers.get(client, NOTHING_TAKEN):
            self.taken[client] = taken
        return client

    def _save(self) -> None:
        if self.save_to:
            profiles = [profile_as_data(profile) for profile in self.roster.profiles.values()]
            values = {"run": self.run, "method": self._described(), "profiles": profiles}
            beside = {**values, "numbers": self.numbers, "taken": self.taken}
            self.save_to.parent.mkdir(parents=True, exist_ok=True)
            save_state(self.save_to, progress_as_state(self.progress, beside))

    def _restore(self, path: Path) -> None:
        state = load_state(path)
        if state.values["method"] != self._described():
            raise ValueError(f"{path}: should be of {self.name} with these settings, found another method; remove it?")
        self.run, self.progress = state.values["run"], progress_from_state(state)
        self.numbers, self.taken = state.values["numbers"], state.values["taken"]
        profiles = [decode_new_profile(data) for data in state.values["profiles"]]
        self.roster = Roster(profile for profile in profiles if isinstance(profile, Profile))

    def _described(self) -> str:
        return self.method.model_dump_json()


class FedHCA2(Federated):
    """FedHCA²: `FedHCA2(c=0.4)`."""

    def __init__(self, **options: object) -> None:
        """Takes the same options and settings as `Federated`."""
        super().__init__("fedhca2", **options)  # type: ignore[arg-type]


def unsuited(method: Method) -> str:
    """Why a method needs our own training loop; empty if any loop will do."""
    if method.local.own_copy:
        return "trains two models in every round, which only fedhca2's own clients do"
    if method.local.frozen or type(method.local).epochs is not Objective.epochs:
        return "freezes parts of the model in some epochs, which only fedhca2's own clients do"
    if method.batch_norm == "recalibrate":
        return "batch_norm should be 'local' or 'average', unless fedhca2's own clients train"
    return ""


def _fits(layout: Layout | None, given: Mapping[str, Tensor]) -> bool:
    """Whether tensors of these names and shapes are given."""
    return layout is not None and all(
        name in given and tuple(given[name].shape) == shape
        for name, shape in zip(layout.names, layout.shapes, strict=True)
    )
