"""The base of everything in a config file: frozen data with bounds, in which unknown keys are errors."""

from collections.abc import Iterable
from difflib import get_close_matches
from types import UnionType
from typing import Annotated, Any, NoReturn, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError


def suggest(word: str, words: Iterable[str]) -> str:
    """Suggest the closest known word, if one is close, and list all known words.

    >>> suggest("detph", ["semseg", "depth"])
    "Did you mean 'depth'? (semseg, depth)"
    """
    options = list(words)
    close = get_close_matches(word, options, n=1)
    hint = f"Did you mean '{close[0]}'? " if close else ""
    return f"{hint}({', '.join(options)})"


def has_boolean_for_number(value: Any, *kinds: Any) -> bool:
    """Whether a value has a boolean where its type expects a number; Python would accept it as 0 or 1.

    >>> has_boolean_for_number([3, True], tuple[int, int]), has_boolean_for_number(True, int | bool)
    (True, False)
    """
    if not isinstance(value, bool | dict | list | tuple):
        return False
    options = [option for kind in kinds for option in _options(kind)]
    if isinstance(value, bool):
        return bool not in options and (int in options or float in options)
    items = value.values() if isinstance(value, dict) else value
    inner = [part for option in options for part in get_args(option)]
    return any(has_boolean_for_number(item, *inner) for item in items)


def _options(kind: Any) -> list[Any]:
    """List the types that a value may have, for `Annotated[int, …] | None` and the like."""
    if get_origin(kind) is Annotated:
        return _options(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        return [option for part in get_args(kind) for option in _options(part)]
    return [kind]


class Config(BaseModel):
    """A frozen record: an unknown key is an error, and records with equal values are equal."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _keys_are_known_and_numbers_are_no_booleans(cls, values: Any) -> Any:
        for key, value in values.items() if isinstance(values, dict) else ():
            if key not in cls.model_fields:
                hint = suggest(str(key), cls.model_fields).replace("{", "{{").replace("}", "}}")
                _refuse(cls, key, value, PydanticCustomError("unknown_key", f"unknown key. {hint}"))
            if has_boolean_for_number(value, cls.model_fields[key].annotation):
                _refuse(cls, key, value, PydanticCustomError("boolean_for_number", "expected a number"))
        return values


def _refuse(config: type[Config], key: Any, value: Any, why: PydanticCustomError) -> NoReturn:
    fault = InitErrorDetails(type=why, loc=(str(key)[:200],), input=value)
    raise ValidationError.from_exception_data(config.__name__, [fault])
