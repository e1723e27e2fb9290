"""The events of a run, one line of JSON each."""

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedhca2.errors import UserError
from fedhca2.messages import Order, Profile, Reply
from fedhca2.run_folder.files import mapping, read_arrays, to_json, write_arrays
from fedhca2.run_folder.folder import EVENTS, MATRICES, MATRICES_FILE
from fedhca2.run_folder.records import Aggregation, ServerRecord, Watcher
from fedhca2.run_folder.schema import check_event, check_matrices
from fedhca2.whole_files import ORDINARY

Event = dict[str, Any]
REGISTERED, EVICTED = "registered", "evicted"  # sites; these events belong to no round, so a rewind keeps them
MOST_MEMBERS = 128  # of an aggregation whose products and weights are logged: they are as many as pairs of members
MOST_INLINE = 24  # members whose matrices are in the event itself
KIND = re.compile(rb'\{"event": "([^"\\]*)"')  # how a line begins
Traffic = Callable[[Order, Reply], tuple[int, int]]  # the bytes up and down of an order and its reply
START: Mapping[str, Any] = {"events": 0, "bytes_up": 0, "bytes_down": 0, "updates": {}}


class EventLog(Watcher):
    """Watches a run and logs its events, starting at a position: later events of rounds are dropped.

    Large matrices are in files of their own, and an event says in which.
    """

    def __init__(self, run: Path, position: Mapping[str, Any], done: int = 0) -> None:
        """`done` is the number of rounds before the position."""
        self._run, self.watcher = run, Watcher()  # which gets every event
        self._profiles: Mapping[str, Profile] = {}
        self._traffic: Traffic = lambda order, reply: (reply.nbytes, order.nbytes)
        self._introduced, self._final = set[str](), "val"
        path, self._matrices = run / EVENTS, run / MATRICES
        self._file = path.open("a", encoding="utf-8")
        with path.open("rb") as file:
            file.seek(position["events"])
            starts = [(KIND.match(line), line) for line in file if line.endswith(b"\n")]
        lasting = [line for start, line in starts if start and start[1].decode() in (REGISTERED, EVICTED)]
        self._file.truncate(position["events"])
        self._written = Counter[int]()  # files of matrices by round
        for matrices in self._matrices.glob("*.npz"):
            match = re.fullmatch(MATRICES_FILE, matrices.name)
            if match and int(match[1]) >= done:
                matrices.unlink()
        self._file.write(b"".join(lasting).decode())
        self._file.flush()
        self.bytes_up, self.bytes_down = position["bytes_up"], position["bytes_down"]
        self.updates = Counter[str](position["updates"])  # how many updates each client has sent

    def position(self) -> dict[str, Any]:
        """The position after all events so far; they are on disk."""
        self._file.flush()
        os.fsync(self._file.fileno())
        length = os.fstat(self._file.fileno()).st_size
        counts = {"bytes_up": self.bytes_up, "bytes_down": self.bytes_down, "updates": dict(self.updates)}
        return {"events": length, **counts}

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def log(self, event: str, **values: Any) -> None:
        """Append one event."""
        logged = {"event": event, **values}
        try:
            self._file.write(to_json(logged) + "\n")
            self._file.flush()
        except OSError as error:
            raise OSError(error.errno, error.strerror, self._file.name) from None
        self.watcher.logged(self._run, logged)

    def log_matrices(self, event: str, round: int, matrices: Mapping[str, Any], **values: Any) -> None:
        """Append an event about the members of a round with matrices: arrays, lists of arrays, or None."""
        if len(values["members"]) <= MOST_INLINE:
            self.log(event, round=round, **values, **{key: _to_list(value) for key, value in matrices.items()})
            return
        parts = {key: value for key, value in matrices.items() if not isinstance(value, list)}
        lists = {key: value for key, value in matrices.items() if isinstance(value, list)}
        parts |= {f"{key}.{i:02d}": part for key, value in lists.items() for i, part in enumerate(value)}
        arrays = {key: np.asarray(part, np.float32) for key, part in parts.items() if part is not None}
        name = f"round-{round:06d}-{self._written[round]}.npz"
        self._written[round] += 1
        self._matrices.mkdir(exist_ok=True)
        write_arrays(self._matrices / name, arrays, ORDINARY)
        self.log(event, round=round, **values, matrices=name)

    def follow(self, profiles: Mapping[str, Profile], traffic: Traffic, introduced: Iterable[str], final: str) -> None:
        """Watch these clients from now on, and log the profiles of those that have not been logged.

        :param profiles: of the clients that take part so far; may grow.
        :param final: the images that final scores are on: "val" or "test".
        """
        self._profiles, self._traffic = profiles, traffic
        self._introduced, self._final = {*introduced}, final
        self._introduce()

    def _introduce(self) -> None:
        """Log who else takes part, and the layout of the decoders' rows."""
        for client in [client for client in self._profiles if client not in self._introduced]:
            self._introduced.add(client)
            profile = self._profiles[client]
            layouts = profile.layouts.items()
            self.log(
                "profile",
                client=client,
                dataset=profile.dataset,
                tasks=profile.tasks,
                samples=profile.samples,
                parameters={str(slot): layout.numel for slot, layout in layouts},
                decoders={slot.task: layout.names for slot, layout in layouts if slot.part == "decoder"},
            )

    def replied(self, order: Order, reply: Reply) -> None:
        """Log a reply, and count its update as sent."""
        up, down = self._traffic(order, reply)
        kind = self._final if order.finish and self._final != "val" else "metric"
        self.bytes_up, self.bytes_down = self.bytes_up + up, self.bytes_down + down
        self.updates[reply.client] += bool(order.upload) and not reply.failed  # which may be part of a sum
        who = {"round": order.round, "client": reply.client}
        for task, scores in reply.metrics.items():
            for metric, value in scores.items():
                self.log(kind, **who, task=task, metric=metric, value=value)
        for task, value in reply.losses.items():
            self.log("loss", **who, task=task, metric="loss", value=value)
        if reply.effect and order.compare:
            self.log("effect", **who, **reply.effect._asdict())
        if reply.failed and order.finish:  # in other rounds the server's record says so
            self.log("failed", **who, why=reply.failed)
        if reply.declined:
            self.log("declined", **who, why=reply.declined)
        self.log("client", **who, seconds=round(reply.seconds, 4), bytes_up=up, bytes_down=down)

    def aggregated(self, round: int, record: ServerRecord, seconds: float) -> None:
        """Log what the server did. An update that was refused has been sent all the same."""
        self._introduce()
        self.updates.update(record.unused)
        for aggregation in record.aggregations:
            values, matrices = _describe(aggregation)
            self.log_matrices("aggregation", round, matrices, **values)
        self.log("weights", round=round, weights={str(key): values for key, values in record.weights.items()})
        if record.late:
            self.log("late", round=round, clients={client: each._asdict() for client, each in record.late.items()})
        self.log("round", round=round, seconds=seconds, refused=record.refused)


def _to_list(value: Any) -> Any:
    if isinstance(value, list):
        return [_to_list(part) for part in value]
    return None if value is None else value.tolist()


def _describe(aggregation: Aggregation) -> tuple[dict[str, Any], dict[str, Any]]:
    """How rows were mixed, and the matrices among at most `MOST_MEMBERS`, which stand for the others if there are more.

    With more members, `of` says how many there are.
    """
    count = len(aggregation.members)
    chosen = [i * count // MOST_MEMBERS for i in range(MOST_MEMBERS)] if count > MOST_MEMBERS else [*range(count)]
    products, votes = aggregation.products, aggregation.mixing.votes
    gets = [[blend.gets[i] for i in chosen] for blend in aggregation.mixing.sums]
    rows = [sorted(set(each)) for each in gets]
    blends = zip(aggregation.mixing.sums, rows, strict=True)
    weights = [blend.scale * blend.weights[..., used, :] for blend, used in blends]
    values = {
        "part": aggregation.part,
        "members": [aggregation.members[i] for i in chosen],
        "measure": aggregation.measure,
        "gets": [[used.index(row) for row in each] for each, used in zip(gets, rows, strict=True)],
        **({"of": count} if count > MOST_MEMBERS else {}),
    }
    matrices = {
        "products": products[chosen][:, chosen] if products is not None else None,
        "mixing": [each[..., chosen] for each in weights],
        "votes": votes[:, chosen][..., chosen] if votes is not None else None,
    }
    return values, matrices


def read_matrices(run: Path, event: Event) -> Event:
    """The same event with all its matrices, which may be in a file of their own; raises UserError if it is damaged."""
    if event["event"] == "aggregation":
        event = {"products": None, "mixing": [], "votes": None, **event}
    if event.get("matrices") is None:
        return event
    path = run / MATRICES / event["matrices"]
    arrays = read_arrays(path, "matrices of a round")
    if any(array.dtype != np.float32 for array in arrays.values()):
        raise UserError(path, f"expected numbers of 32 bits, got {[str(array.dtype) for array in arrays.values()]}")
    event |= {key: arrays[key] for key in ("products", "transfer", "votes") if key in arrays}
    event |= {"mixing": [arrays[key] for key in sorted(arrays) if key.startswith("mixing.")]}
    check_matrices(event, str(path))
    return event


def read_events(path: Path, kind: str | None = None) -> Iterator[Event]:
    """Read a file of events, if there is one, line by line: all, or those of one kind, without parsing the others.

    An incomplete last line is skipped.
    """
    if not path.is_file():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            start = KIND.match(line)
            if kind is not None and start is not None and start[1] != kind.encode():
                continue
            try:
                event = parse_event(line, f"{path}: line {number}")
            except UserError:
                if line.endswith(b"\n"):
                    raise
                return
            if kind in (None, event["event"]):
                yield event


def parse_event(line: bytes, where: str) -> Event:
    """Parse an event from a line of JSON; raises UserError if it is not one."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        raise UserError(where, f"expected JSON, got {line[:40].decode(errors='replace')!r}") from None
    return check_event(mapping(where, event), where)
