"""`key.path=value` on top of a config."""

from copy import deepcopy
from typing import Any

from fedhca2.errors import UserError
from fedhca2.strict_yaml import MOST_LEVELS, YamlError, parse_yaml


def apply_overrides(values: Any, overrides: list[str]) -> Any:
    """The config with each override in place; list entries are named by number, values are YAML.

    >>> apply_overrides({"rounds": 3, "clients": [{"epochs": 1}]}, ["rounds=5", "clients.0.epochs=2", "method.c=0.2"])
    {'rounds': 5, 'clients': [{'epochs': 2}], 'method': {'c': 0.2}}
    """
    values = deepcopy(values)
    for override in overrides:
        path, equals, text = override.partition("=")
        if not equals or not path or path.count(".") >= MOST_LEVELS:
            raise UserError(
                [f"--set {override:.200}: should be KEY=VALUE, as in rounds=5 or training.learning_rate=0.001"]
            )
        try:
            value = parse_yaml(text)
        except YamlError as error:
            raise UserError([f"--set {override:.200}: the value is {error}"]) from None
        _set(values, path.split("."), value, override)
    return values


def _set(record: Any, steps: list[str], value: Any, override: str) -> None:
    for i, step in enumerate(steps):
        last = i == len(steps) - 1
        if isinstance(record, list):
            if not step.isdigit() or int(step) >= len(record):
                raise UserError([f"--set {override}: {step!r} should be the number of an entry below {len(record)}"])
            key: Any = int(step)
        elif isinstance(record, dict):
            key = step
            if isinstance(record.get(key), str) and key == "method" and not last:
                record[key] = {"name": record[key]}  # `method: fedavg` is short for `method: {name: fedavg}`
            if not last and record.get(key) is None:
                record[key] = {}
        else:
            raise UserError([f"--set {override}: there is nothing below {'.'.join(steps[:i])!r}"])
        if last:
            record[key] = value
        else:
            record = record[key]
