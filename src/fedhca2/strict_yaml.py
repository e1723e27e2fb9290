"""Reading YAML configs: plain data, unique keys, and bounds on size, so that no text takes long to read."""

from contextlib import suppress
from importlib.resources.abc import Traversable
from typing import Any, ClassVar

import yaml
from yaml.composer import ComposerError
from yaml.constructor import ConstructorError
from yaml.events import AliasEvent
from yaml.nodes import MappingNode, Node, ScalarNode

MOST_BYTES = 2**24
MOST_VALUES = 100_000  # with every alias expanded
MOST_LEVELS = 64
PLAIN = ("null", "bool", "int", "float", "str", "seq", "map")
TAG = "tag:yaml.org,2002:"


class YamlError(ValueError):
    """Text that cannot be read; one line with the reason, line and column."""


def read_yaml(file: Traversable) -> Any:
    """Read a YAML file. Raises YamlError if it is not plain YAML, and OSError if there is no such file."""
    with file.open("rb") as stream:
        content = stream.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise YamlError(f"should have at most {MOST_BYTES} bytes, found more")
    try:
        return parse_yaml(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise YamlError(f"should be UTF-8, found {error.reason} at byte {error.start}") from None


def parse_yaml(text: str) -> Any:
    """Parse a YAML text. Raises YamlError if it is not plain YAML.

    >>> parse_yaml("clients: [{tasks: [depth]}]")
    {'clients': [{'tasks': ['depth']}]}
    >>> parse_yaml("rounds: 3\\nrounds: 5")
    Traceback (most recent call last):
    fedhca2.strict_yaml.YamlError: not valid YAML at line 2, column 1: found the key 'rounds' a second time
    """
    with suppress(yaml.YAMLError):
        return _Loader(text, quick=yaml.__with_libyaml__).get_single_data()
    try:
        return _Loader(text).get_single_data()  # which says better what is wrong, and where
    except yaml.YAMLError as error:
        raise YamlError(_described(error)) from None


def _described(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    if mark is None:
        return f"not valid YAML: {' '.join(str(error).split())}"
    reasons = (getattr(error, "context", None), getattr(error, "problem", None))
    why = " ".join(", ".join(filter(None, reasons)).split())[:200]
    return f"not valid YAML at line {mark.line + 1}, column {mark.column + 1}: {why}"


class _Loader(yaml.SafeLoader):
    """Counts values and levels as it meets them, to refuse what is too large before building it."""

    yaml_constructors: ClassVar = {
        tag: yaml.SafeLoader.yaml_constructors[tag] for tag in (*(TAG + name for name in PLAIN), None)
    }
    yaml_implicit_resolvers = {  # noqa: RUF012
        letter: [(tag, pattern) for tag, pattern in resolvers if tag != f"{TAG}timestamp"]
        for letter, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def __init__(self, text: str, quick: bool = False) -> None:
        super().__init__(text)
        if quick:  # libyaml finds the same events in a fraction of the time
            events = yaml.CSafeLoader(text)
            self.__dict__.update({name: getattr(events, name) for name in ("check_event", "peek_event", "get_event")})
        self._values = self._levels = 0
        self._size: dict[Node, int] = {}  # of complete nodes, with every alias expanded

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        before, place = self._values, event.start_mark
        self._values += 1
        self._levels += 1
        if self._levels > MOST_LEVELS:
            raise ComposerError(None, None, f"found more than {MOST_LEVELS} levels", place)
        node = super().compose_node(parent, index)
        self._levels -= 1
        if isinstance(event, AliasEvent):
            if node not in self._size:
                raise ComposerError(None, None, f"found {event.anchor!r} within itself", place)
            self._values += self._size[node]
        if self._values > MOST_VALUES:
            raise ComposerError(None, None, f"found more than {MOST_VALUES} values", place)
        if node is not None:
            self._size.setdefault(node, self._values - before)
        return node

    def compose_mapping_node(self, anchor: Any) -> MappingNode:
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if isinstance(key, ScalarNode):
                if (key.tag, key.value) in seen:
                    raise ComposerError(None, None, f"found the key {key.value!r} a second time", key.start_mark)
                seen.add((key.tag, key.value))
        return node

    def construct_object(self, node: Node, deep: bool = False) -> Any:
        try:
            made = super().construct_object(node, deep)
            if isinstance(made, int):
                str(made)  # Python refuses to print numbers with thousands of digits, and error messages name them
            return made
        except yaml.YAMLError:
            raise
        except Exception as error:  # constructors raise anything for text that is not of their type
            why = f"found {str(node.value)[:40]!r}, which is not a valid {str(node.tag).removeprefix(TAG)}"
            raise ConstructorError(None, None, why, node.start_mark) from error
