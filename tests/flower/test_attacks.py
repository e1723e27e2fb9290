"""Every adversary plays every attack against real processes; one table says what came of each.

`make test` plays most of them, `make attack` all.
"""

from contextlib import ExitStack
from functools import cache

import pytest
from hostile_sites import SITES

from attack_table import Line

pytestmark = pytest.mark.slow
ADVERSARIES = (SITES,)


@pytest.fixture(scope="module")
def stage_of(tmp_path_factory):
    """Starts an adversary's processes when its first attack is played."""
    with ExitStack() as stack:
        yield cache(lambda adversary: stack.enter_context(adversary.stage(tmp_path_factory.mktemp("stage"))))


@pytest.mark.parametrize(
    ("adversary", "attack"),
    [
        pytest.param(adversary, attack, id=attack.name, marks=[pytest.mark.long] if attack.long else [])
        for adversary in ADVERSARIES
        for attack in adversary.attacks
    ],
)
def test_attack(adversary, attack, stage_of, record_property):
    outcome = attack.play(stage_of(adversary))
    record_property("attack", Line(adversary.name, attack.name, attack.line, outcome.found, outcome.drift).to_dict())
    assert not attack.fault(outcome)
