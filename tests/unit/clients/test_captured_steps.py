"""What a captured step loads from a learner and stores back, with a graph that computes again on the CPU."""

from types import SimpleNamespace
from weakref import WeakSet

import pytest
import torch
from torch.testing import assert_close

from fedhca2.clients.device import Captures
from fedhca2.clients.training import LocalTerms
from fedhca2.compiling import Graphs
from small import clients, small

CPU = torch.device("cpu")
RATE = 1e-3


@pytest.fixture
def captures(monkeypatch):
    def recorded(run):
        run()  # as before a capture, which changes the values of the graph's own model
        return SimpleNamespace(replay=run)

    monkeypatch.setattr("fedhca2.clients.device.capture_graph", recorded)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (0, 0))
    return Captures(CPU, compile=False)


def pulled(model):
    return LocalTerms(pull=0.5, pulled=[(name, p.detach() + 0.1) for name, p in model.named_parameters()])


def frozen(model):
    return LocalTerms(frozen=frozenset({"decoder", "head"}))


def in_doubles(batch):
    return batch.map(lambda value: value.double() if value.is_floating_point() else value)


def trained(captures, terms, **training):
    """Models and moments of two clients of a kind that train in turn, in two rounds of two epochs."""
    settings = {"batch_size": 2, "schedule": {"warmup_epochs": 0, "lag": False}, **training}
    twins = [{"data": "outdoor", "tasks": ["semseg"], "name": name} for name in ("a", "b")]
    both = clients(small(clients=twins, training=settings)).values()
    for client in both:
        client.personal.model.double()  # Adam would follow the rounding of biases without effect
    for epoch in range(4):
        for client in both:
            learner, batches = client.personal, map(in_doubles, client.batches(epoch))
            learner.train_epoch(batches, RATE, terms(learner.model), captures=captures)
            if epoch % 2:
                learner.end_round()
    return [client.current.tensors for client in both]


@pytest.mark.parametrize("kind", ["adamw", "sgd"])
def test_a_captured_step_has_the_rates_of_all_parts(captures, kind):
    training = {"optimizer": {"kind": kind}, "learning_rate": 1e-2, "encoder_rate": 1e-4}
    actual, expected = (trained(each, lambda model: LocalTerms(), **training) for each in (captures, None))
    assert_close(actual, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("reset", ["never", "every_round"])
@pytest.mark.parametrize("kind", ["adamw", "adam", "sgd"])
@pytest.mark.parametrize("terms", [lambda model: LocalTerms(), pulled, frozen], ids=["plain", "pulled", "frozen"])
def test_clients_that_share_a_captured_step_train_as_without(captures, terms, kind, reset):
    optimizer = {"kind": kind, "amsgrad": kind == "adam", "momentum": 0.9 * (kind == "sgd"), "reset": reset}
    actual, expected = trained(captures, terms, optimizer=optimizer), trained(None, terms, optimizer=optimizer)
    assert len(captures.graphs) == 1
    assert [tensors.keys() for tensors in actual] == [tensors.keys() for tensors in expected]
    assert any("optimizer" in name for name in actual[0]) == (reset == "never")
    assert_close(actual, expected, rtol=1e-4, atol=1e-6)


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
