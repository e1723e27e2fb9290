"""Reading YAML configs: plain data, unique keys, and bounds on size, so that no text takes long to read."""

from importlib.resources.abc import Traversable
from typing import Any, ClassVar

import yaml
from yaml.constructor import ConstructorError
from yaml.events import AliasEvent, CollectionEndEvent, CollectionStartEvent, NodeEvent
from yaml.nodes import MappingNode, Node, ScalarNode

_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's is many times as fast


class YamlError(ValueError):
    """Text that cannot be read; one line with the reason, line and column."""


def read_yaml(file: Traversable, max_bytes: int = 2**24) -> Any:
    """Read a YAML file. Raises YamlError if it is not plain YAML, and OSError if there is no such file."""
    with file.open("rb") as stream:
        content = stream.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise YamlError(f"expected at most {max_bytes} bytes, got more")
    try:
        return parse_yaml(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise YamlError(f"expected UTF-8, got {error.reason} at byte {error.start}") from None


def parse_yaml(text: str) -> Any:
    """Parse a YAML text. Raises YamlError if it is not plain YAML.

    >>> parse_yaml("clients: [{tasks: [depth]}]")
    {'clients': [{'tasks': ['depth']}]}
    >>> parse_yaml("rounds: 3\\nrounds: 5")
    Traceback (most recent call last):
    fedhca2.strict_yaml.YamlError: not valid YAML at line 2, column 1: found the key 'rounds' a second time
    """
    try:
        _check_size(text)
        return yaml.load(text, _StrictSafeLoader)
    except yaml.YAMLError as error:
        raise YamlError(_describe(error)) from None


def _describe(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    if mark is None:
        return f"not valid YAML: {' '.join(str(error).split())}"
    reasons = (getattr(error, "context", None), getattr(error, "problem", None))
    why = " ".join(", ".join(filter(None, reasons)).split())[:200]
    return f"not valid YAML at line {mark.line + 1}, column {mark.column + 1}: {why}"


def _check_size(text: str, max_values: int = 100_000, max_levels: int = 64) -> None:
    """Raise an error if a text has too many levels, or with every alias expanded too many values; builds nothing."""
    values, sizes, opened = 0, dict[str | None, int](), list[tuple[str | None, int]]()
    for event in yaml.parse(text, _Base):
        mark: Any = event.start_mark
        if isinstance(event, CollectionEndEvent):
            anchor, before = opened.pop()
            sizes |= {anchor: values - before} if anchor else {}
        elif isinstance(event, NodeEvent):
            values += 1
            if isinstance(event, AliasEvent):
                if any(event.anchor == anchor for anchor, _ in opened):
                    raise ConstructorError(None, None, f"found {event.anchor!r} within itself", mark)
                values += sizes.get(event.anchor, 0)
            elif isinstance(event, CollectionStartEvent):
                opened.append((event.anchor, values))
            if len(opened) > max_levels or values > max_values:
                much = f"{max_levels} levels" if len(opened) > max_levels else f"{max_values} values"
                raise ConstructorError(None, None, f"found more than {much}", mark)


class _StrictSafeLoader(_Base):  # type: ignore[misc]
    """Knows only plain values, of which dates are none, and refuses a key that occurs twice."""

    yaml_constructors: ClassVar = {
        tag: make
        for tag, make in yaml.SafeLoader.yaml_constructors.items()
        if tag is None or tag.rpartition(":")[2] in ("null", "bool", "int", "float", "str", "seq", "map")
    }
    yaml_implicit_resolvers: ClassVar = {
        letter: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
        for letter, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def flatten_mapping(self, node: MappingNode) -> None:
        """Look for keys that occur twice before others are merged into the mapping."""
        seen = set()
        for key, _ in () if hasattr(node, "is_flat") else node.value:
            if isinstance(key, ScalarNode):
                if (key.tag, key.value) in seen:
                    raise ConstructorError(None, None, f"found the key {key.value!r} a second time", key.start_mark)
                seen.add((key.tag, key.value))
        node.is_flat = True  # type: ignore[attr-defined]
        super().flatten_mapping(node)

    def construct_object(self, node: Node, deep: bool = False) -> Any:
        """Name the location of a text that is not of its type."""
        try:
            made = super().construct_object(node, deep)
            if isinstance(made, int):
                str(made)  # Python refuses to print numbers with thousands of digits, and error messages name them
            return made
        except (ValueError, LookupError) as error:
            why = f"found {str(node.value)[:40]!r}, which is not a valid {node.tag.rpartition(':')[2]}"
            raise ConstructorError(None, None, why, node.start_mark) from error
