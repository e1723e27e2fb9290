"""The gate: everything from a client is bounded and checked here, before any other code sees it.

It returns a value, or a refusal with a reason. Code behind it trusts types, names and sizes. A client whose answer is
refused counts as absent.
"""

import math
import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedhca2.aggregation import Weights
from fedhca2.federation.foreign_text import NAME, plain, shown
from fedhca2.messages import Effect, Profile, Reply
from fedhca2.params import Layout, Part, Slot, unflatten
from fedhca2.tasks import TASKS, TaskSet

LARGEST = torch.finfo(torch.float32).max  # of a loss, a score, an agreement
LONGEST = 1e9  # seconds
SCORES = 32  # per task
SCORE = re.compile(r"[A-Za-z0-9_.@ -]{1,64}")
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Expected:
    """What a reply should be."""

    round: int
    profiles: Mapping[str, Profile]
    parts: Mapping[str, Container[Part]]  # that each client sends
    weights: Mapping[str, Weights]  # by 'client/slot'
    final: bool = False  # after the last round every task must be scored, and a client may not report a failure
    tasks: TaskSet = TASKS


def well_formed(replies: Iterable[Reply], expected: Expected) -> tuple[dict[str, Reply], dict[str, str]]:
    """Well-formed replies by client, sorted by name, and the reasons against the others.

    Rows are not read, except running statistics, which are small.
    """
    sound: dict[str, Reply] = {}
    refused: dict[str, str] = {}
    for reply in replies:
        fault = fault_of(reply, expected)
        name = plain(reply.client, NAME) if isinstance(getattr(reply, "client", None), str) else "unknown"
        if fault:
            refused.setdefault(name, fault)
        elif name in sound:
            refused[f"{name} (again)"] = "a client should reply once in a round, found another reply"
        else:
            sound[name] = reply
    refused = {f"{client} (again)" if client in sound else client: why for client, why in refused.items()}
    return dict(sorted(sound.items())), refused


def sent_updates(replies: Iterable[Reply], expected: Expected) -> list[str]:
    """The clients that sent an update, whether it can be used or not."""
    named = [reply for reply in replies if isinstance(reply, Reply) and isinstance(reply.client, str)]
    silent = {reply.client for reply in named if isinstance(reply.failed, str) and reply.failed}
    return [reply.client for reply in named if expected.parts.get(reply.client) and reply.client not in silent]


def fault_of(reply: Any, expected: Expected) -> str:
    """Why a reply cannot be used, whatever it is; empty if it can."""
    try:
        return plain(_form(reply, expected) or _rows(reply, expected) or _numbers(reply, expected))
    except Exception as error:  # nothing in a reply may stop the server
        return plain(f"reply should be readable, found {type(error).__name__}: {shown(error)}")


def _form(reply: Reply, expected: Expected) -> str:
    if not isinstance(reply, Reply):
        return f"should be a reply, found {type(reply).__name__}"
    if reply.client not in expected.profiles:
        return f"client should be one of {', '.join(expected.profiles)}, found {shown(reply.client)}"
    if not isinstance(reply.failed, str) or not isinstance(reply.declined, str):
        return f"failed and declined should be text, found {shown(reply.failed)} and {shown(reply.declined)}"
    if type(reply.round) is not int or reply.round != expected.round:
        return f"round should be {expected.round}, found {shown(reply.round)}"
    return f"failed: {reply.failed}" if reply.failed and not expected.final else ""


def _rows(reply: Reply, expected: Expected) -> str:
    layouts = expected.profiles[reply.client].layouts
    slots = {slot for slot in layouts if slot.part in expected.parts.get(reply.client, ())}
    if set(reply.rows) != slots:
        return f"rows should be {_listed(slots)}, found {_listed(reply.rows)}"
    for slot, row in reply.rows.items():
        numel = layouts[slot].numel
        if not isinstance(row, Tensor):
            return f"{slot}: row should be a tensor, found {type(row).__name__}"
        if row.dtype not in DTYPES or row.layout != torch.strided or row.is_meta:
            found = f"{row.dtype} ({row.layout}, {row.device})"
            return f"{slot}: row should have {numel} floating-point numbers, found {found}"
        if row.shape != (numel,):
            return f"{slot}: row should have {numel} floating-point numbers, found shape {tuple(row.shape)}"
        if slot.part.endswith("_norms") and (fault := _statistics(row, layouts[slot])):
            return f"{slot}: {fault}"
    return ""


def _statistics(row: Tensor, layout: Layout) -> str:
    """Check running statistics, which are small. A negative variance would turn whatever it normalises into NaN."""
    if not bool(row.isfinite().all()):
        return "row should be finite, found NaN or infinite values"
    for name, values in unflatten(row, layout).items():
        if name.endswith("running_var") and bool((values < 0).any()):
            return f"{name} should be no less than 0, found {float(values.min()):.4g}"
    return ""


def _numbers(reply: Reply, expected: Expected) -> str:
    tasks = expected.profiles[reply.client].tasks
    if not _is_number(reply.seconds) or not 0 <= reply.seconds <= LONGEST:
        return f"seconds should be from 0 to {LONGEST:g}, found {shown(reply.seconds)}"
    for slot, agreement in reply.agreement.items():
        known = expected.weights.get(f"{reply.client}/{slot}") if isinstance(slot, Slot) else None
        if known is None or len(known.value) != len(agreement):
            return f"{shown(str(slot))}: agreement should match the learned weights, found {len(agreement)} numbers"
        if not all(map(_is_finite, agreement)):
            return f"{slot}: agreement should be finite, found {shown(agreement)}"
    if not set(reply.losses) <= set(tasks) or not all(map(_is_number, reply.losses.values())):
        return f"losses should be numbers for {', '.join(tasks)}, found {shown(dict(reply.losses))}"
    if reply.effect is not None and not (isinstance(reply.effect, Effect) and all(map(_is_finite, reply.effect))):
        return f"effect should be three finite numbers, found {shown(reply.effect)}"
    if expected.final and not reply.metrics and reply.declined:
        return reply.declined
    if not set(reply.metrics) <= set(tasks) or (expected.final and set(reply.metrics) != set(tasks)):
        return f"metrics should be of tasks {', '.join(tasks)}, found {_listed(reply.metrics)}"
    for task, scores in reply.metrics.items():
        main = expected.tasks[task].metrics
        if not any(name in scores for name in main) or len(scores) > SCORES or not all(map(SCORE.fullmatch, scores)):
            named = " or ".join(main)
            return f"metrics of {task} should be {named} and at most {SCORES - 1} more, found {_listed(scores)}"
        if not all(map(_is_number, scores.values())):
            return f"metrics of {task} should be numbers, found {shown(dict(scores))}"
    return ""


def _is_number(value: object) -> bool:
    """Whether it is a number in float32's range, NaN or infinite."""
    if isinstance(value, bool) or not isinstance(value, (float, int)):
        return False
    return abs(value) <= LARGEST or (isinstance(value, float) and not math.isfinite(value))


def _is_finite(value: object) -> bool:
    return _is_number(value) and math.isfinite(value)  # type: ignore[arg-type]


def _listed(names: Iterable[object]) -> str:
    listed = sorted(plain(str(name), NAME) for name in names)
    return ", ".join(listed[:12]) + (" …" if len(listed) > 12 else "") or "none"
