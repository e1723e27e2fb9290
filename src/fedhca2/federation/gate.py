"""The gate: everything from a client is bounded and checked here, before any other code sees it.

Code behind it trusts types, names and sizes.
"""

import json
import math
import re
import reprlib
import unicodedata
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from fedhca2.aggregation import Weights
from fedhca2.messages import Effect, Profile, Reply
from fedhca2.params import Part, unflatten
from fedhca2.run_folder.records import SlotKey
from fedhca2.tasks import TASKS, TaskSet

MAX_NAME = 64  # characters of a name
MAX_HEADER = 2**20  # characters of JSON; the names and shapes of a large encoder take about 50,000
MAX_SCORES = 32  # per task
SCORE_NAME = re.compile(r"[A-Za-z0-9_.@ -]{1,64}")
P = ParamSpec("P")
T = TypeVar("T")


def plain(text: str, limit: int = 500) -> str:
    r"""Make text from outside one line of bounded length, without characters that control a terminal or hide text.

    >>> plain("\x1b[31mred\u202e\ud800,\nthen " + "long" * 99, limit=24)
    '[31mred , then longlong…'
    """
    unseen = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}  # control, format, surrogate, private, unassigned, breaks
    whole = text[: 4 * limit]
    line = " ".join("".join(" " if unicodedata.category(each) in unseen else each for each in whole).split())
    return line if len(line) <= limit and len(text) == len(whole) else line[: limit - 1] + "…"


def shown(value: object) -> str:
    """Show any value in a few words, however large or deep it is."""
    return plain(reprlib.repr(value), MAX_NAME)


class UnusableError(ValueError):
    """Something from elsewhere that is not used; `why` is plain text."""

    def __init__(self, why: str) -> None:
        self.why = plain(why)
        super().__init__(self.why)

    @classmethod
    def of(cls, error: Exception) -> "UnusableError":
        """The refusal of what raised this error when it was read."""
        return error if isinstance(error, cls) else cls(f"expected what can be read, got {shown(error)}")


def attempt(read: Callable[P, T], *args: P.args, **options: P.kwargs) -> T | UnusableError:
    """What a reader of something from elsewhere returns, or why that is refused: nothing in it may stop the server."""
    try:
        return read(*args, **options)
    except OSError:  # of this machine: what is read is in memory
        raise
    except Exception as error:
        return UnusableError.of(error)


def read_json(text: object) -> dict[str, Any]:
    """Parse the mapping in a text; its content is not checked. Raises UnusableError.

    >>> attempt(read_json, "[" * 200_000)
    UnusableError('header: expected JSON, got RecursionError')
    """
    if not isinstance(text, str) or len(text) > MAX_HEADER:
        got = f"{len(text)} characters" if isinstance(text, str) else type(text).__name__
        raise UnusableError(f"header: expected at most {MAX_HEADER} characters of JSON, got {got}")
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnusableError(f"header: expected JSON, got {type(error).__name__}") from None
    if not isinstance(values, dict):
        raise UnusableError(f"header: expected a mapping, got {shown(values)}")
    return values


@dataclass(frozen=True)
class Expected:
    """What a reply should be."""

    round: int
    profiles: Mapping[str, Profile]
    parts: Mapping[str, Container[Part]]  # that each client sends
    weights: Mapping[SlotKey, Weights]
    at_work: Mapping[str, int] = field(default_factory=dict)  # the rounds of orders sent earlier, by client
    final: bool = False  # after the last round every task must be scored, and a client may not report a failure
    tasks: TaskSet = TASKS


def check_reply(reply: Any, expected: Expected) -> None:
    """Raise UnusableError if this is no reply that can be used. Of its rows, only running statistics are read."""
    if not isinstance(reply, Reply):
        raise UnusableError(f"expected a reply, got {type(reply).__name__}")
    if reply.client not in expected.profiles:
        raise UnusableError(f"client: expected one of {', '.join(expected.profiles)}, got {shown(reply.client)}")
    if not isinstance(reply.failed, str) or not isinstance(reply.declined, str):
        raise UnusableError(f"failed, declined: expected text, got {shown((reply.failed, reply.declined))}")
    round = expected.at_work.get(reply.client, expected.round)
    if type(reply.round) is not int or reply.round != round:
        raise UnusableError(f"round: expected {round}, got {shown(reply.round)}")
    if reply.failed and not expected.final:
        raise UnusableError(f"failed: {reply.failed}")
    _check_rows(reply, expected)
    _check_numbers(reply, expected)


def _check_rows(reply: Reply, expected: Expected) -> None:
    layouts = expected.profiles[reply.client].layouts
    slots = {slot for slot in layouts if slot.part in expected.parts.get(reply.client, ())}
    if set(reply.rows) != slots:
        raise UnusableError(f"rows: expected {_join_names(slots)}, got {_join_names(reply.rows)}")
    for slot, row in reply.rows.items():
        expectation = f"{slot}: expected {layouts[slot].numel} floating-point numbers"
        if not isinstance(row, Tensor):
            raise UnusableError(f"{expectation}, got {type(row).__name__}")
        is_supported = row.dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16)
        if not is_supported or row.layout != torch.strided or row.is_meta:
            raise UnusableError(f"{expectation}, got {row.dtype} ({row.layout}, {row.device})")
        if row.shape != (layouts[slot].numel,):
            raise UnusableError(f"{expectation}, got shape {tuple(row.shape)}")
        if slot.part.endswith("_norms"):  # small running statistics
            if not bool(row.isfinite().all()):
                raise UnusableError(f"{slot}: expected finite values, got NaN or infinite ones")
            # A negative variance would turn whatever it normalises into NaN.
            for name, values in unflatten(row, layouts[slot]).items():
                if name.endswith("running_var") and bool((values < 0).any()):
                    raise UnusableError(f"{slot}: {name}: expected 0 or more, got {float(values.min()):.4g}")


def _check_numbers(reply: Reply, expected: Expected) -> None:
    tasks = expected.profiles[reply.client].tasks
    if not _is_number(reply.seconds) or not 0 <= reply.seconds <= 1e9:
        raise UnusableError(f"seconds: expected 0 to 1e+09, got {shown(reply.seconds)}")
    if type(reply.steps) is not int or not 1 <= reply.steps <= 1e9:
        raise UnusableError(f"steps: expected a whole number from 1 to 1e+09, got {shown(reply.steps)}")
    for slot, agreement in reply.agreement.items():
        weights = expected.weights.get(SlotKey(reply.client, slot))
        if weights is None or len(weights.value) != len(agreement):
            expectation = f"as many numbers as the learned weights, got {len(agreement)}"
            raise UnusableError(f"agreement of {shown(str(slot))}: expected {expectation}")
        if not all(map(_is_finite, agreement)):
            raise UnusableError(f"agreement of {slot}: expected finite numbers, got {shown(agreement)}")
    if not set(reply.losses) <= set(tasks) or not all(map(_is_number, reply.losses.values())):
        raise UnusableError(f"losses: expected numbers for {', '.join(tasks)}, got {shown(dict(reply.losses))}")
    if reply.effect is not None and not (isinstance(reply.effect, Effect) and all(map(_is_finite, reply.effect))):
        raise UnusableError(f"effect: expected three finite numbers, got {shown(reply.effect)}")
    if expected.final and not reply.metrics and reply.declined:
        raise UnusableError(reply.declined)
    if not set(reply.metrics) <= set(tasks) or (expected.final and set(reply.metrics) != set(tasks)):
        raise UnusableError(f"metrics: expected those of {', '.join(tasks)}, got {_join_names(reply.metrics)}")
    for task, scores in reply.metrics.items():
        main, are_few = expected.tasks[task].metrics, len(scores) <= MAX_SCORES
        if not are_few or not any(name in scores for name in main) or not all(map(SCORE_NAME.fullmatch, scores)):
            expectation = f"{' or '.join(main)} and at most {MAX_SCORES - 1} more"
            raise UnusableError(f"metrics of {task}: expected {expectation}, got {_join_names(scores)}")
        if not all(map(_is_number, scores.values())):
            raise UnusableError(f"metrics of {task}: expected numbers, got {shown(dict(scores))}")


def _is_number(value: object) -> bool:
    """Whether it is a number in float32's range, NaN or infinite."""
    if isinstance(value, bool) or not isinstance(value, (float, int)):
        return False
    return abs(value) <= torch.finfo(torch.float32).max or (isinstance(value, float) and not math.isfinite(value))


def _is_finite(value: object) -> bool:
    return _is_number(value) and math.isfinite(value)  # type: ignore[arg-type]


def _join_names(names: Iterable[object]) -> str:
    listed = sorted(plain(str(name), MAX_NAME) for name in names)
    return ", ".join(listed[:12]) + (" …" if len(listed) > 12 else "") or "none"


def check_replies(replies: Iterable[Reply], expected: Expected) -> tuple[dict[str, Reply], dict[str, str]]:
    """Check replies: returns those that can be used by client, sorted by name, and the reasons against the others."""
    valid: dict[str, Reply] = {}
    refused: dict[str, str] = {}
    for reply in replies:
        fault = attempt(check_reply, reply, expected)
        name = plain(reply.client, MAX_NAME) if isinstance(getattr(reply, "client", None), str) else "unknown"
        if fault:
            refused.setdefault(name, fault.why)
        elif name in valid:
            refused[f"{name} (again)"] = "expected one reply of a client in a round, got another"
        else:
            valid[name] = reply
    refused = {f"{client} (again)" if client in valid else client: why for client, why in refused.items()}
    return dict(sorted(valid.items())), refused


def senders(replies: Iterable[Reply], parts: Mapping[str, Container[Part]]) -> list[str]:
    """The clients that sent an update, whether it can be used or not."""
    named = [reply for reply in replies if isinstance(reply, Reply) and isinstance(reply.client, str)]
    silent = {reply.client for reply in named if isinstance(reply.failed, str) and reply.failed}
    return [reply.client for reply in named if parts.get(reply.client) and reply.client not in silent]
