"""Who works next at which device slot."""

from types import SimpleNamespace

from fedhca2.federation.client_store import ClientQueue

KINDS = {"a-1": "a", "a-2": "a", "b-1": "b", "b-2": "b"}


def gpu(*kinds):
    return SimpleNamespace(captures=object(), kinds=set(kinds))


def cpu(*kinds):
    return SimpleNamespace(captures=None, kinds=set(kinds))


def test_the_client_with_the_most_work_is_first():
    slot = cpu("b")
    turns = ClientQueue(["a-1", "b-1"], KINDS)
    assert [turns.next(slot, [slot]) for _ in range(3)] == ["a-1", "b-1", None]


def test_a_gpu_prefers_clients_of_a_kind_that_it_knows():
    slot = gpu("b")
    turns = ClientQueue(["a-1", "b-1", "a-2", "b-2"], KINDS)
    assert [turns.next(slot, [slot]) for _ in range(4)] == ["b-1", "b-2", "a-1", "a-2"]


def test_a_new_slot_takes_a_kind_that_no_other_knows():
    known, new = gpu("a"), gpu()
    assert ClientQueue(["a-1", "b-1"], KINDS).next(new, [known, new]) == "b-1"
    assert new.kinds == {"b"}


def test_a_slot_helps_with_a_known_kind_when_nothing_else_waits():
    known, new = gpu("a"), gpu()
    assert ClientQueue(["a-1"], KINDS).next(new, [known, new]) == "a-1"
