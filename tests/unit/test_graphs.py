"""Which captured graphs are kept, with memory that stands in for that of a GPU."""

from weakref import WeakSet

import pytest
import torch

from fedhca2.compiling import Graphs

ROOM, SIZE = 10, 2


class Graph:
    """Takes memory as long as it lives."""


@pytest.fixture
def use(monkeypatch):
    """Gets graphs of these kinds, one after another; returns the kinds that were captured, and the memory left."""
    alive, graphs, captured = WeakSet(), Graphs(torch.device("cuda", 0)), []
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (ROOM - SIZE * len(alive), ROOM))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)

    def capture(kind):
        captured.append(kind)
        alive.add(graph := Graph())
        return graph

    def used(*kinds):
        captured.clear()
        for kind in kinds:
            graphs.get(kind, lambda kind=kind: capture(kind))
        return [*captured], ROOM - SIZE * len(alive)

    return used


def test_graphs_used_longest_ago_make_room_when_there_is_none(use):
    kinds = [*"abcd"[: ROOM // SIZE - 1]]
    assert use(*kinds, *kinds)[0] == kinds
    assert use("a", "e", "a", "b")[0] == ["e", "b"]
    assert use(*range(20))[1] >= SIZE
