"""A site's ledger of noised updates: what costs, what does not, and the effect of a crash or a damaged file."""

import json
import multiprocessing
import stat

import pytest
import torch
from pydantic import ValidationError

from fedhca2.clients.privacy import epsilon
from fedhca2.errors import UserError
from fedhca2.federation.flower.deploy.site_config import Ledger, Sent, SitePrivacy, cost
from fedhca2.params import Slot

NO_END = SitePrivacy()
ROWS = {Slot("encoder"): torch.arange(3.0), Slot("decoder", "edge"): torch.ones(2)}


def budget(updates, noise=1.0):
    """A budget for exactly this many updates."""
    return SitePrivacy(clip=1.0, noise=noise, epsilon=epsilon(noise, updates) * (1 + 1e-9))


def sent(round=0, run="run1", noise=1.0):
    return Sent(run=run, round=round, noise=noise, digest=f"{run} {round} {noise}")


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path / "home.ledger.jsonl")


@pytest.mark.parametrize(
    ("entries", "noise", "count"),
    [([sent(0), sent(1), sent(0, run="run2")], 1.0, 3), ([sent(0, noise=3.0), sent(1, noise=4.0)], 2.4, 1)],
    ids=["runs", "noises"],
)
def test_updates_of_all_runs_and_noises_add_up(ledger, entries, noise, count):
    for entry in entries:
        ledger.charge(entry, NO_END)
    assert cost(Ledger(ledger.path).entries(), 1e-5) == pytest.approx(epsilon(noise, count))


def test_the_same_update_costs_nothing_the_second_time(ledger):
    for _ in range(2):
        assert ledger.affords("run1", 0, 1.0, budget(1))  # also if it was paid for before a crash
        ledger.charge(sent(), budget(1))
    assert len(ledger.entries()) == 1


def test_an_update_is_identified_by_its_bits():
    again = {slot: row.clone() for slot, row in reversed(ROWS.items())}
    zero = {Slot("encoder"): torch.tensor([0.0])}
    minus_zero = {Slot("encoder"): torch.tensor([-0.0])}
    assert Sent.of("run1", 0, 1.0, ROWS) == Sent.of("run1", 0, 1.0, again)
    assert Sent.of("run1", 0, 1.0, zero) != Sent.of("run1", 0, 1.0, minus_zero)


def test_the_ledger_holds_no_number_of_an_update(ledger):
    ledger.charge(Sent.of("run1", 0, 1.0, ROWS), NO_END)
    assert json.loads(ledger.path.read_text()).keys() == {"run", "round", "noise", "digest", "kind"}


def test_a_spent_budget_allows_no_more_updates(ledger):
    for round in range(2):
        assert ledger.affords("run1", round, 1.0, budget(2))
        ledger.charge(sent(round), budget(2))
    assert not ledger.affords("run1", 2, 1.0, budget(2))
    assert not ledger.affords("run1", 2, 0.5, budget(3))
    with pytest.raises(UserError, match="the privacy budget is spent"):
        ledger.charge(sent(2), budget(2))
    assert len(ledger.entries()) == 2


def test_nobody_else_may_read_it(ledger):
    ledger.charge(sent(), NO_END)
    assert stat.S_IMODE(ledger.path.stat().st_mode) == 0o600


NO_NOISE = '{"run": "a", "round": 0, "noise": 0, "digest": ""}'


@pytest.mark.parametrize("line", ['{"run":"run1","ro', "[]", NO_NOISE, "null"])
def test_a_damaged_ledger_lets_nothing_out(ledger, line):
    ledger.charge(sent(), NO_END)
    ledger.path.write_text(f"{line}\n{ledger.path.read_text()}")
    for attempt in (lambda: ledger.affords("run1", 1, 1.0, budget(9)), lambda: ledger.charge(sent(1), budget(9))):
        with pytest.raises(UserError, match="line 1: expected the record of an update"):
            attempt()


def spend(path, run):
    for round in range(20):
        try:
            Ledger(path).charge(sent(round, run), budget(15))
        except UserError:
            return


def test_runs_at_the_same_time_do_not_spend_a_budget_twice(ledger):
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=spend, args=(ledger.path, run)) for run in ("run1", "run2", "run3")]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert len(ledger.entries()) == 15


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        ({"epsilon": 8.0}, "epsilon: expected noise"),
        ({"clip": 1.0, "noise": 1.0, "epsilon": 4.0}, r"epsilon: expected at least 4\.377, .* got 4"),
        ({"clip": 1.0, "noise": 1.0, "delta": 0.0}, "greater than 0"),
    ],
)
def test_a_budget_that_cannot_be_kept_is_refused(values, fault):
    with pytest.raises(ValidationError, match=fault):
        SitePrivacy(**values)
