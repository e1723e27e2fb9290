"""Events as named numbers: the same ones in the terminal, in TensorBoard and in W&B."""

from collections.abc import Iterator
from typing import NamedTuple

from fedhca2.reports.run_files import Event


class Scalar(NamedTuple):
    """A number of one round."""

    tag: str
    round: int
    value: float


def scalars(event: Event) -> Iterator[Scalar]:
    """All numbers of an event that are worth a curve.

    >>> list(scalars({"event": "loss", "round": 0, "client": "a", "task": "sal", "metric": "loss", "value": 0.5}))
    [Scalar(tag='a/sal/loss', round=1, value=0.5)]
    """
    match event["event"]:
        case "metric":
            yield Scalar(f"{event['client']}/{event['task']}/{event['metric']}", event["round"], event["value"])
        case "loss":
            yield Scalar(f"{event['client']}/{event['task']}/loss", event["round"] + 1, event["value"])
        case "client":
            for name in ("seconds", "bytes_up", "bytes_down"):
                yield Scalar(f"{event['client']}/{name}", event["round"] + 1, event[name])
        case "weights":
            for key, values in event["weights"].items():
                for layer, value in enumerate(values):
                    tag = key if len(values) == 1 else f"{key}/{layer}"
                    yield Scalar(f"weights/{tag}", event["round"] + 1, value)
        case "round":
            yield Scalar("round/seconds", event["round"] + 1, event["seconds"])
