"""Hostile sites with real keys at a real SuperLink: what they send costs them their round, and harms no one else."""

import pytest
from flwr.proto.message_pb2 import PullObjectRequest
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from hostile import name_of
from hostile_sites import PLAYED, stage

pytestmark = [pytest.mark.slow, pytest.mark.attack]


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    with stage(tmp_path_factory.mktemp("stage")) as found:
        yield found


def marks(attack):
    return [pytest.mark.long] if attack.long else []


@pytest.mark.parametrize("attack", [pytest.param(attack, id=attack.name, marks=marks(attack)) for attack in PLAYED])
def test_a_hostile_site_harms_itself_alone(attack, federation, tell):
    outcome = attack.play(federation)
    tell("hostile site", attack.name, attack.line, outcome.found, outcome.drift)
    assert not attack.fault(outcome)


def is_stored(node, run, name):
    return node.client.PullObject(PullObjectRequest(node=node.node, run_id=run, object_id=name)).object_found


def test_a_superlink_keeps_neither_the_order_of_a_silent_site_nor_a_late_answer(federation):
    got = []
    federation.round(lambda message, good: got.append((message, good)), deadline=2)
    [(message, good)] = got
    run, arrays = message.metadata.run_id, [*get_all_nested_objects(message)]
    assert not [name for name in arrays if is_stored(federation.hostile, run, name)]
    late = good.sent()
    federation.hostile.send(message, late)
    assert is_stored(federation.hostile, run, name_of(late[0]))
    federation.round(lambda message, good: federation.hostile.send(message, good.sent()))
    assert not [content for content in late if is_stored(federation.hostile, run, name_of(content))]
