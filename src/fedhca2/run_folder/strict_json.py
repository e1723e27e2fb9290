"""JSON that every program can read: non-finite numbers become null."""

import json
from math import isfinite, nan
from pathlib import Path
from typing import Any

from fedhca2.errors import UserError


def to_json(values: Any, **options: Any) -> str:
    """Convert plain data to JSON, with null for NaN and infinities, which the standard does not allow.

    >>> to_json({"miou": float("nan"), "rmse": [0.5, float("inf")]})
    '{"miou": null, "rmse": [0.5, null]}'
    """
    return json.dumps(_finite(values), allow_nan=False, **options)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def read_json(path: Path) -> Any:
    """Read plain data from a file; raises UserError if it is damaged, and OSError if it does not exist."""
    try:
        return json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(path, f"should be JSON, found {error}") from None


def numbers(value: Any) -> Any:
    """Restore scores from JSON: null becomes NaN.

    >>> numbers({"road": {"semseg": {"miou": None}}, "home": {"depth": {"rmse": 0.5}}})
    {'road': {'semseg': {'miou': nan}}, 'home': {'depth': {'rmse': 0.5}}}
    """
    if isinstance(value, dict):
        return {key: numbers(item) for key, item in value.items()}
    return nan if value is None else value


def mapping(place: object, values: Any) -> dict[str, Any]:
    """Check that values are a mapping, or raise a UserError that names the place."""
    if not isinstance(values, dict):
        raise UserError(str(place), f"should hold keys and values, found {values!r:.40}")
    return values
