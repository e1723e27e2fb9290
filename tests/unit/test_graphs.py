"""Which captured graphs are kept, with memory that stands in for that of a GPU."""

from weakref import WeakSet

import pytest
import torch

from fedhca2.compiling import Graphs

ROOM, SIZE = 10, 2


class Graph:
    """Takes memory as long as it lives."""


@pytest.fixture
def alive(monkeypatch):
    """The graphs that take memory of the GPU."""
    graphs = WeakSet()
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (ROOM - SIZE * len(graphs), ROOM))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    return graphs


@pytest.fixture
def use(alive):
    """Gets graphs of these kinds, one after another; returns the kinds that were captured."""
    graphs, captured = Graphs(torch.device("cuda", 0)), []

    def capture(kind):
        captured.append(kind)
        alive.add(graph := Graph())
        return graph

    def used(*kinds):
        captured.clear()
        for kind in kinds:
            graphs.get(kind, lambda kind=kind: capture(kind))
        return [*captured]

    return used


def test_with_any_number_of_kinds_there_is_room_for_one_more(use, alive):
    use(*range(20))
    assert ROOM - SIZE * len(alive) >= SIZE


def test_all_are_kept_while_there_is_room(use):
    kinds = range(ROOM // SIZE - 1)
    assert use(*kinds, *kinds) == list(kinds)


def test_those_used_longest_ago_make_room(use):
    use("a", "b", "c", "d")
    assert use("a", "e", "a", "b") == ["e", "b"]
