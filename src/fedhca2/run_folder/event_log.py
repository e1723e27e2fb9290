"""The events of a run, one line of JSON each."""

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from math import nan
from pathlib import Path
from typing import Any

from torch import Tensor

from fedhca2.errors import UserError
from fedhca2.messages import Order, Profile, Reply
from fedhca2.run_folder.records import Aggregation, ServerRecord
from fedhca2.run_folder.schema import check_event
from fedhca2.run_folder.strict_json import mapping, to_json

Event = dict[str, Any]
REGISTERED, EVICTED = "registered", "evicted"  # sites; these events belong to no round, so a rewind keeps them
MOST_MEMBERS = 128  # of an aggregation whose products and weights are logged: they are as many as pairs of members
KIND = re.compile(rb'\{"event": "([^"\\]*)"')  # how a line begins
START: Mapping[str, Any] = {"events": 0, "bytes_up": 0, "bytes_down": 0, "updates": {}}


class EventLog:
    """Watches a run and logs its events, starting at a position: later events of rounds are dropped."""

    def __init__(self, path: Path, position: Mapping[str, Any]) -> None:
        self._file = path.open("a", encoding="utf-8")
        lasting = [line for line in path.read_bytes()[position["events"] :].splitlines(True) if _is_lasting(line)]
        self._file.truncate(position["events"])
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
        try:
            self._file.write(to_json({"event": event, **values}) + "\n")
            self._file.flush()
        except OSError as error:
            raise OSError(error.errno, error.strerror, self._file.name) from None

    def introduced(self, profiles: Iterable[Profile]) -> None:
        """Log who takes part, and the layout of the decoders' rows."""
        for profile in profiles:
            self.log(
                "profile",
                client=profile.client,
                dataset=profile.dataset,
                tasks=profile.tasks,
                samples=profile.samples,
                parameters={str(slot): layout.numel for slot, layout in profile.layouts.items()},
                decoders={
                    slot.task: layout.names for slot, layout in profile.layouts.items() if slot.part == "decoder"
                },
            )

    def batch(self, client: str, done: int, total: int, loss: Tensor) -> None:
        """Batches are not logged."""

    def replied(self, order: Order, reply: Reply, beside: tuple[int, int] = (0, 0)) -> None:
        """Log a client's work: its scores belong to the model after `round` rounds, its losses to the next round.

        The effect is that of the rows from the last of these rounds.

        `beside` counts the bytes up and down of further messages.
        """
        up, down = reply.nbytes + beside[0], order.nbytes + beside[1]
        self.bytes_up, self.bytes_down = self.bytes_up + up, self.bytes_down + down
        self.updates[reply.client] += bool(order.upload) and not reply.failed  # which may be part of a sum
        who = {"round": order.round, "client": reply.client}
        for task, scores in reply.metrics.items():
            for metric, value in scores.items():
                self.log("metric", **who, task=task, metric=metric, value=value)
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
        self.updates.update(record.unused)
        for aggregation in record.aggregations:
            self.log("aggregation", round=round, **_logged(aggregation))
        self.log("weights", round=round, weights=record.weights)
        self.log("round", round=round, seconds=seconds, refused=record.refused)


def _logged(aggregation: Aggregation) -> dict[str, Any]:
    """How rows were mixed: all numbers among at most `MOST_MEMBERS`, which stand for the others if there are more.

    With more members, `of` says how many there are.
    """
    count = len(aggregation.members)
    chosen = [i * count // MOST_MEMBERS for i in range(MOST_MEMBERS)] if count > MOST_MEMBERS else [*range(count)]
    products, votes = aggregation.products, aggregation.mixing.votes
    gets = [[blend.gets[i] for i in chosen] for blend in aggregation.mixing.blends]
    rows = [sorted(set(each)) for each in gets]
    weights = [blend.weights[..., kept, :] for blend, kept in zip(aggregation.mixing.blends, rows, strict=True)]
    return {
        "part": aggregation.part,
        "members": [aggregation.members[i] for i in chosen],
        "measure": aggregation.measure,
        "products": products[chosen][:, chosen].tolist() if products is not None else None,
        "mixing": [each[..., chosen].tolist() for each in weights],
        "gets": [[kept.index(row) for row in each] for each, kept in zip(gets, rows, strict=True)],
        "votes": votes[:, chosen][..., chosen].tolist() if votes is not None else None,
        **({"of": count} if count > MOST_MEMBERS else {}),
    }


def _is_lasting(line: bytes) -> bool:
    try:
        return json.loads(line)["event"] in (REGISTERED, EVICTED)
    except ValueError:  # an incomplete line of a killed run
        return False


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


def parse_event(line: bytes, place: str) -> Event:
    """Parse an event from a line of JSON; raises UserError if it is not one."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        raise UserError([f"{place}: expected JSON, got {line[:40].decode(errors='replace')!r}"]) from None
    return known(mapping(place, event), place)


def known(event: Event, place: str) -> Event:
    """Check an event, and replace a null value, which stands for a non-finite number, with NaN."""
    check_event(event, place)
    return {**event, "value": nan} if event.get("value", 0.0) is None else event
