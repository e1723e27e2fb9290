"""Hostile sites with real keys at a real SuperLink: what they send costs them their round, and harms no one else."""

import pytest
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
