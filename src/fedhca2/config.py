"""The base of everything that a config file can say: frozen data with bounds, where unknown keys are errors."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator


def suggest(word: str, known: Iterable[str]) -> str:
    """The known word that is closest, if one is close, and all that are known.

    >>> suggest("detph", ["semseg", "depth"])
    "Did you mean 'depth'? (semseg, depth)"
    """
    options = list(known)
    close = get_close_matches(word, options, n=1)
    hint = f"Did you mean '{close[0]}'? " if close else ""
    return f"{hint}({', '.join(options)})"


class Config(BaseModel):
    """A frozen record; an unknown key is an error, and equal values are equal records."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _keys_are_known(cls, values: Any) -> Any:
        if isinstance(values, dict):
            for key in values:
                if key not in cls.model_fields:
                    raise ValueError(f"unknown key {key!r}. {suggest(str(key), cls.model_fields)}")
        return values
