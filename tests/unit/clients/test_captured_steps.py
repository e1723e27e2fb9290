"""What captured steps load and store, which graphs are kept, and what is compiled, with stand-ins for a GPU."""

import sys
from types import SimpleNamespace
from weakref import WeakSet

import pytest
import torch
from torch.testing import assert_close

from fedhca2.clients import precompile
from fedhca2.clients.device import Captures
from fedhca2.clients.training import LocalTerms
from fedhca2.compiling import Graphs
from small import SMALL, clients, small

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


JOBS = [{"part": "input", "size": [64, 64]}]
SIZES = {"outdoor": [32, 32], "indoor": [32, 64]}
COMPILER = """#!{python}
import json, sys
for job in json.load(sys.stdin)[:{most}]:
    print(job["part"])
sys.exit({code})
"""


@pytest.mark.parametrize("module", [precompile, torch])
def test_another_version_compiles_again_and_so_do_other_jobs_and_gpus(module, monkeypatch):
    before = [precompile.mark_of(jobs, gpu) for jobs, gpu in ((JOBS, "H200"), (JOBS, "A100"), ([], "H200"))]
    monkeypatch.setattr(module, "__version__", "another")
    assert len({*before, precompile.mark_of(JOBS, "H200")}) == 4


@pytest.fixture
def compiling(tmp_path, monkeypatch):
    """Compiles for two kinds of clients with a program that only says so; returns sizes that were traced, and marks."""
    built = clients(small(data={name: {**SMALL["data"][name], "size": size} for name, size in SIZES.items()}))
    models = {name: small().model for name in built}
    monkeypatch.setenv(precompile.CACHE, str(tmp_path))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "GPU")

    def work(most=None, code=0, room=2**40):
        program, traced = tmp_path / "python", []
        program.write_text(COMPILER.format(python=sys.executable, most=most, code=code))
        program.chmod(0o700)
        with monkeypatch.context() as here:
            here.setattr(torch.cuda, "mem_get_info", lambda _: (room, room))
            here.setattr(sys, "executable", str(program))
            here.setattr(precompile, "_trace", lambda device, jobs: traced.append(list(jobs[0]["size"])))
            precompile.precompile(models, list(built.values()), torch.device("cpu"))
        return traced, list(tmp_path.glob("fedhca2-*"))

    with torch._inductor.config.patch(compile_threads=8):
        yield work


@pytest.mark.parametrize(("room", "sizes"), [(2**40, [SIZES["outdoor"]]), (6 << 30, [])])
def test_a_kind_is_traced_while_the_next_is_compiled_if_the_gpu_has_room_and_nothing_twice(compiling, room, sizes):
    traced, marks = compiling(room=room)
    assert (traced, len(marks)) == (sizes, 1)  # the last kind is traced by its clients
    assert compiling(code=1)[0] == []
    assert torch._inductor.config.compile_threads == 1


@pytest.mark.parametrize("most", [0, 3, None])
def test_what_failed_is_not_taken_for_done(compiling, most):
    traced, marks = compiling(most=most, code=1)
    assert traced == ([SIZES["outdoor"]] if most is None else [])
    assert marks == []
    assert torch._inductor.config.compile_threads == 8
