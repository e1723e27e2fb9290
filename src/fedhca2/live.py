"""Objects that a user hands over in Python: each gets an import path, which only this process knows."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from hashlib import sha256
from types import CodeType, FunctionType
from typing import Any
from weakref import WeakValueDictionary

from pydantic import BaseModel

MODULE = "live"  # in such paths


@dataclass(eq=False)
class Live:
    """An object, and its import path, valid as long as this object exists. Of several with one path it is the last."""

    path: str
    value: Any


_handed_over = WeakValueDictionary[str, Live]()


def hand_over(value: Any, name: str) -> Live:
    """Give an object an import path: its own if its module can be imported, or one like 'live:Net-1a2b3c4d'.

    The digits stand for the code of a class or function and for the content of other objects. So a cell of a notebook
    that is run again gives the same path, and an edited one another.

    :param name: what to call an object that has no name of its own.
    """
    module, own = str(getattr(value, "__module__", "")), str(getattr(value, "__qualname__", ""))
    if own and module != "__main__" and getattr(sys.modules.get(module), own, None) is value:
        return Live(f"{module}:{own}", value)
    variables = vars(sys.modules["__main__"]).items()
    variable = next((each for each, content in variables if content is value and not each.startswith("_")), name)
    digits = sha256("\0".join(_content(value)).encode(errors="replace")).hexdigest()[:8]
    path = f"{MODULE}:{own.rpartition('.')[2] or variable}-{digits}"
    live = _handed_over.setdefault(path, Live(path, value))
    live.value = value
    return live


def is_live(path: str) -> bool:
    """Whether an import path is of an object that was handed over, in this process or in another."""
    return path.startswith(f"{MODULE}:")


def find(path: str) -> Live | None:
    """The object with this path; None if it was handed over in another process, or no longer exists."""
    return _handed_over.get(path)


def _content(value: Any, seen: frozenset[int] = frozenset()) -> Iterator[str]:
    """What distinguishes an object from others of its name, in texts without addresses or numbers of lines."""
    yield type(value).__qualname__
    if id(value) in seen:  # a class refers to its own methods, and they to it
        return
    parts: Iterable[Any] = ()
    if isinstance(value, type):
        left_out = ("__doc__", "__module__", "__dict__", "__weakref__", "__firstlineno__")
        parts = [pair for pair in vars(value).items() if pair[0] not in left_out]
        yield str(value.__bases__)
    elif isinstance(value, FunctionType):
        cells = (cell.cell_contents for cell in value.__closure__ or ())
        parts = (value.__code__, value.__defaults__, *cells)
    elif isinstance(value, CodeType):
        parts = (value.co_code.hex(), value.co_names, value.co_consts)
    elif isinstance(value, classmethod | staticmethod):
        parts = (value.__func__,)
    elif isinstance(value, property):
        parts = (value.fget,)
    elif isinstance(value, tuple | list):
        parts = value
    elif isinstance(value, BaseModel | str | int | float | None):
        yield repr(value)
    elif is_dataclass(value):
        parts = [getattr(value, each.name) for each in fields(value)]
    elif hasattr(value, "__len__") and hasattr(value, "__getitem__") and not isinstance(value, Mapping):  # a data set
        once, again = ([_sample(value[i]) for i in ({0, len(value) - 1} if len(value) else ())] for _ in range(2))
        parts = (len(value), once if once == again else ())  # images may be changed at random
    yield from (text for part in parts for text in _content(part, seen | {id(value)}))


def _sample(sample: Any) -> list[str]:
    values = sample.values() if isinstance(sample, Mapping) else sample if isinstance(sample, tuple) else [sample]
    return [value.tobytes().hex() if hasattr(value, "tobytes") else repr(value) for value in values]
