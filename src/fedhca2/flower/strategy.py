"""A Flower strategy for clients with different tasks: every method of the catalogue, with your own apps and model."""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from secrets import token_hex
from time import sleep
from typing import TypeVar

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from torch import Tensor

from fedhca2.clients import load_state, save_state
from fedhca2.experiment.settings import GuardBounds, Participation
from fedhca2.federation.flower import records
from fedhca2.federation.flower.records import Header, Wire
from fedhca2.federation.flower.wait import TooFewClientsError, Wait
from fedhca2.federation.gate import UnusableError, attempt, shown
from fedhca2.federation.guard import Guard, LargestMove
from fedhca2.federation.server import Server
from fedhca2.flower.client import NOTHING_TAKEN, PROTOCOL
from fedhca2.messages import Addend, Delivery, Order, Profile
from fedhca2.methods import Method, resolve
from fedhca2.objectives import Objective
from fedhca2.params import Layout, Slot, flatten
from fedhca2.run_folder.records import Progress, progress_as_state, progress_from_state

log = logging.getLogger("flwr")  # which Flower shows
T = TypeVar("T")


class Roster:
    """All clients that ever joined, the nodes of those that are connected, and the nodes that were refused."""

    def __init__(self, profiles: Iterable[Profile] = ()) -> None:
        self.profiles = {profile.client: profile for profile in profiles}
        self.nodes: dict[int, str] = {}
        self.refused: dict[int, str] = {}  # the reasons

    def meet(self, grid: Grid, timeout: float, least: int = 0) -> None:
        """Ask new nodes who they are, until there are at least this many clients."""
        wait = Wait(timeout)
        while True:
            online = set(grid.get_node_ids())
            self.nodes = {node: client for node, client in self.nodes.items() if node in online}
            self.refused = {node: why for node, why in self.refused.items() if node in online}
            if unknown := sorted(online - self.nodes.keys() - self.refused.keys()):
                queries = [Message(records.pack({}), node, "query") for node in unknown]
                # A node that takes longer than two minutes is asked again before the next round.
                for message in grid.send_and_receive(queries, timeout=min(120.0, timeout)):
                    self._introduce(message)
            if len(self.nodes) >= least:
                return
            if wait.is_over:
                names = ", ".join(self.nodes.values())
                raise TooFewClientsError(f"expected {least} clients, got {names or 'none'}")
            sleep(min(1.0, timeout))

    def _introduce(self, message: Message) -> None:
        """Remember which client a node is, unless it cannot be that client."""
        node, profile = message.metadata.src_node_id, attempt(self._read_profile, message)
        if isinstance(profile, UnusableError):
            log.warning("node %d is left out: %s", node, profile.why)
            if not message.has_error():
                self.refused[node] = profile.why
            return
        self.profiles[profile.client], self.nodes[node] = profile, profile.client
        log.info("%s has joined: %s, %d samples", profile.client, ", ".join(profile.tasks), profile.samples)

    def _read_profile(self, message: Message) -> Profile:
        header = read_header(message)
        if (version := header.get("protocol")) != PROTOCOL:
            got = f"{shown(version)}: install the same fedhca2 everywhere"
            raise UnusableError(f"protocol: expected {PROTOCOL}, got {got}")
        profile = records.decode_new_profile(header)
        if profile.client in self.nodes.values():
            raise UnusableError(f"{profile.client} has already joined as another node")
        if self.profiles.get(profile.client, profile) != profile:
            same = "the tasks, parameters and images that it had before"
            raise UnusableError(f"{profile.client}: expected {same}, got others")
        return profile


def read_header(message: Message) -> Header:
    """The header of an answer; raises UnusableError if it is none."""
    if message.has_error():
        raise UnusableError(str(message.error.reason))
    return records.header_of(message.content)


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
        guard: GuardBounds | None = None,
        wire: Wire = "float32",
        **settings: object,
    ) -> None:
        """:param save_to: a file with all that must survive; if it exists, `start` continues from it.
        :param min_clients: a round begins with at least this many clients.
        :param fraction: the share of the connected clients that a round asks.
        :param evaluate_every: rounds between evaluations, 0 for none. The last rows are always sent with one.
        :param largest_move: the guard refuses replies that moved farther per value, as a root mean square.
        :param guard: bounds for replies.
        :param wire: the type of numbers in messages.
        :param settings: the method's.
        """
        if isinstance(method, Method) and settings:
            raise ValueError(f"settings: expected none, since a Method has its own, got {', '.join(settings)}")
        self.method = method if isinstance(method, Method) else resolve(method, settings)
        self.name = "method" if isinstance(method, Method) else method
        check_suited(self.name, self.method)
        self.save_to = Path(save_to) if save_to else None
        self.min_clients, self.evaluate_every, self.wire = min_clients, evaluate_every, wire
        self.participation = Participation(fraction=fraction)
        self.guard, self.reach = guard or GuardBounds(), LargestMove(largest_move)
        self.timeout, self.rounds = 3600.0, 0  # seconds for a message; all rounds, once `start` knows them
        self.run = token_hex(16)  # clients keep their state under this name
        self.progress = Progress()
        self.roster = Roster()
        self.numbers: dict[str, int] = {}  # of the rows that wait for each client: the rounds they are made from
        self.taken: dict[str, int] = {}  # of the last rows that each client took
        if self.save_to and self.save_to.exists():
            self._restore(self.save_to)

    @property
    def server(self) -> Server:
        """Our server for the clients that have introduced themselves; its state is in `progress`."""
        method = self.method.over(self.rounds) if self.rounds else self.method
        return Server(method, self.roster.profiles.values())

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
            raise ValueError("evaluate_fn: expected None: there is no common model; clients score theirs in evaluate")
        self.rounds, self.timeout = num_rounds, timeout
        arrays, done = initial_arrays or ArrayRecord(), self.progress.state.round
        if done >= num_rounds:  # they may still wait for the last rows
            self.roster.meet(grid, timeout, self.min_clients)
            messages = self.configure_evaluate(done, arrays, evaluate_config or ConfigRecord(), grid)
            scores = self.aggregate_evaluate(done, grid.send_and_receive(messages, timeout=timeout))
            return Result(evaluate_metrics_clientapp={done: scores} if scores else {})
        result = super().start(grid, arrays, num_rounds - done, timeout, train_config, evaluate_config)
        trained = {round + done: record for round, record in result.train_metrics_clientapp.items()}
        scored = {round + done: record for round, record in result.evaluate_metrics_clientapp.items()}
        return replace(result, train_metrics_clientapp=trained, evaluate_metrics_clientapp=scored)

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
        readable = [reply for message in replies if (reply := self._read(message, records.decode_reply))]
        guard = Guard(self.server, self.guard, self.reach)
        state, deliveries, record = guard.step(self.progress.state, readable, self.progress.pending)
        for reply in readable:
            if reply.declined:
                log.warning("%s: %s", reply.client, reply.declined)
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
        scores: dict[str, float] = {}
        for message in replies:
            scores |= self._read(message, records.decode_scores) or {}
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
        tensors: Mapping[str, Tensor] = arrays.to_torch_state_dict()
        rows: dict[Layout, Tensor] = {}
        for client in self.roster.nodes.values():
            first = {}
            for slot, layout in self.roster.profiles[client].layouts.items():
                there = Layout.of({name: tensors[name] for name in layout.names if name in tensors})
                if slot.part in ("encoder", "encoder_norms") and there == layout:
                    rows[layout] = rows[layout] if layout in rows else flatten(tensors, layout)
                    first[slot] = Delivery("nothing", (Addend(rows[layout]),))
            if client not in self.numbers and first:
                self.progress = replace(self.progress, pending={**self.progress.pending, client: first})
                self.numbers[client] = 0
        if not rows:
            raise ValueError("initial_arrays: expected the names and shapes of a client's encoder, got others")

    def _rows(self, client: str) -> Mapping[Slot, Delivery]:
        """The rows that a client has not taken yet."""
        waiting = self.numbers.get(client, NOTHING_TAKEN) > self.taken.get(client, NOTHING_TAKEN)
        return self.progress.pending.get(client, {}) if waiting else {}

    def _messages(self, orders: Mapping[str, Order], kind: str, config: ConfigRecord) -> list[Message]:
        """One message for each node: rows that several get are one array in all of them."""
        node_of = {client: node for node, client in self.roster.nodes.items()}
        local = self.method.local
        shared = {"run": self.run, "method": self.name, "wire": self.wire, "anchor": local.anchor, "pull": local.pull}
        headers = {
            client: {**shared, "rows": self.numbers[client] if order.deliveries else NOTHING_TAKEN}
            for client, order in orders.items()
        }
        messages = []
        for client, content in records.encode_orders(orders, self.wire, headers).items():
            content["config"] = config
            messages.append(Message(content, node_of[client], kind))
        return messages

    def _read(self, message: Message, read: Callable[[Header, Tensor | None, Profile], T]) -> T | None:
        """What a client answered, with a note of the rows that it has taken; None if that cannot be used."""
        node = message.metadata.src_node_id
        client = self.roster.nodes.get(node, "")

        def read_answer() -> T:
            header = read_header(message)
            if not client:
                raise UnusableError("it is not a client")
            taken = header.get("taken")
            if type(taken) is int and taken <= self.numbers.get(client, NOTHING_TAKEN):
                self.taken[client] = taken
            return read(header, records.to_rows(message.content).get(records.OWN), self.roster.profiles[client])

        answer = attempt(read_answer)
        if isinstance(answer, UnusableError):
            log.warning("%s is left out: %s", client or f"node {node}", answer.why)
            return None
        return answer

    def _save(self) -> None:
        if self.save_to:
            profiles = [records.profile_as_data(profile) for profile in self.roster.profiles.values()]
            values = {"run": self.run, "method": self.method.model_dump_json(), "profiles": profiles}
            self.save_to.parent.mkdir(parents=True, exist_ok=True)
            saved = progress_as_state(self.progress, {**values, "numbers": self.numbers, "taken": self.taken})
            save_state(self.save_to, saved)

    def _restore(self, path: Path) -> None:
        state = load_state(path)
        if state.values["method"] != self.method.model_dump_json():
            raise ValueError(
                f"{path}: expected a run of {self.name} with these settings, got another; delete it or change save_to"
            )
        self.run, self.progress = state.values["run"], progress_from_state(state)
        self.numbers, self.taken = state.values["numbers"], state.values["taken"]
        self.roster = Roster(map(records.decode_new_profile, state.values["profiles"]))


class FedHCA2(Federated):
    """FedHCA²: `FedHCA2(c=0.4)`."""

    def __init__(self, **options: object) -> None:
        """Takes the same options and settings as `Federated`."""
        super().__init__("fedhca2", **options)  # type: ignore[arg-type]


def check_suited(name: str, method: Method) -> None:
    """Raise ValueError if a method needs our own training loop."""
    local = method.local
    faults = {
        "trains two models in every round": local.own_copy,
        "freezes parts of the model in some epochs": local.frozen or type(local).epochs is not Objective.epochs,
        "keeps rows for its local training": local.keeps,
        "fine-tunes models after the last round": local.final_epochs,
        "keeps normalisation layers local": method.norms == "local",
        "needs all data in one place": local.in_one_place,
        "recalibrates the statistics of batch norms": method.batch_norm == "recalibrate",
    }
    for fault, applies in faults.items():
        if applies:
            raise ValueError(f"{name}: {fault}, which only fedhca2's own clients do")
