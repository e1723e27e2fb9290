"""A site sends no more than its own budget allows, whatever it is asked for."""

import pytest
import torch
from federations import Federation, PowerCutError, small_experiment

from fedhca2.clients.privacy import epsilon
from fedhca2.federation.flower.deploy.site import Site
from fedhca2.federation.flower.deploy.site_config import SPENT, Ledger, SitePrivacy, SiteScores
from fedhca2.messages import Addend, Delivery, Order
from fedhca2.params import Slot
from fedhca2.run_folder.records import Watcher

pytestmark = pytest.mark.slow
NOISE = 2.0
ENCODER = Slot("encoder")
UPLOAD = {"encoder": "updates", "decoder": "updates"}


def allowed(updates):
    return SitePrivacy(clip=1.0, noise=NOISE, epsilon=epsilon(NOISE, updates) * (1 + 1e-9))


@pytest.fixture
def federation(tmp_path):
    """Its `home` may send two updates; the experiment has no noise."""
    found = Federation(small_experiment(rounds=4, guard={"noise": NOISE}), tmp_path)
    found.set_up("home", privacy=allowed(2))
    return found


@pytest.fixture
def site(federation):
    return federation.sites["home"]


@pytest.fixture
def invitation(federation):
    return federation.fleet().invitation


def entries(site):
    return Ledger.of(site.config).entries()


def test_an_experiment_without_noise_gets_noised_updates_all_the_same(site, invitation):
    reply = site.perform(invitation, Order(0, upload=UPLOAD))
    assert float(torch.cat(list(reply.rows.values())).std()) == pytest.approx(NOISE, rel=0.05)


def test_a_site_whose_budget_is_spent_says_so_and_sends_nothing(site, invitation):
    replies = [site.perform(invitation, Order(round, upload=UPLOAD)) for round in range(3)]
    assert [(bool(reply.rows), reply.failed) for reply in replies] == [(True, ""), (True, ""), (False, SPENT)]
    other = type(invitation)("run2", invitation.experiment)  # nor in another run, and after a restart
    assert Site(site.config).perform(other, Order(0, upload=UPLOAD)).failed == SPENT


def test_a_site_with_a_spent_budget_takes_rows_without_training(site, invitation):
    for round in range(2):
        site.perform(invitation, Order(round, upload=UPLOAD))
    client = site.client
    before = {name: tensor.clone() for name, tensor in client.personal.model.state_dict().items()}
    row = torch.ones(client.layouts[ENCODER].numel)
    site.perform(invitation, Order(2, {ENCODER: Delivery("trained", (Addend(row, (0.5,)),))}, upload=UPLOAD))
    after = client.personal.model.state_dict()
    changed = {name for name, tensor in after.items() if not torch.equal(tensor, before[name])}
    assert changed == {f"encoder.{name}" for name in client.layouts[ENCODER].names}
    assert all(torch.equal(after[name], before[name] + 0.5) for name in changed)


LAST = Order(4, finish=True, train=False, evaluate=True)


@pytest.mark.parametrize(("order", "cost"), [(Order(0, upload=UPLOAD), 1), (LAST, 0)])
def test_an_update_costs_once_and_an_evaluation_nothing(site, invitation, order, cost):
    for _ in range(3):
        site.perform(invitation, order)
    assert len(entries(site)) == cost


def telling(site, updates, **scores):
    """The site with a budget for this many updates, and these settings for scores."""
    changes = {"privacy": allowed(updates), "scores": SiteScores(**scores)}
    return Site(site.config.model_copy(update=changes))


def test_noised_scores_cost_as_much_as_an_update_and_beyond_the_budget_they_stay_at_the_site(site, invitation):
    site = telling(site, 3, send="all", noise=NOISE)
    first, second = (site.perform(invitation, Order(round, evaluate=True, upload=UPLOAD)) for round in (0, 1))
    assert {task: [*scores] for task, scores in first.metrics.items()} == {"depth": ["rmse"], "normals": ["mean_error"]}
    assert (bool(second.rows), second.metrics, second.declined) == (True, {}, f"scores stay at the site: {SPENT}")
    assert [(entry.kind, entry.noise) for entry in entries(site)] == [
        (k, NOISE) for k in ("update", "scores", "update")
    ]


def test_a_site_that_sends_no_scores_is_not_evaluated(site, invitation, monkeypatch):
    monkeypatch.setattr("fedhca2.clients.Client.evaluate", None)
    assert not site.perform(invitation, LAST).metrics


def crash(site, invitation, monkeypatch, order):
    """Carry out an order, but crash before the reply is on disk; returns what would have been sent."""
    replies = []

    def die(path, reply):
        replies.append(reply)
        raise PowerCutError

    with monkeypatch.context() as patch:
        patch.setattr("fedhca2.clients.state_file.save_reply", die)
        with pytest.raises(PowerCutError):
            site.perform(invitation, order)
    return replies[0]


@pytest.mark.parametrize("order", [Order(0, upload=UPLOAD), LAST], ids=["a round", "scores"])
def test_what_is_sent_again_after_a_crash_has_the_same_noise_and_costs_once(site, invitation, monkeypatch, order):
    site = telling(site, 2, send="final", noise=NOISE)
    lost = crash(site, invitation, monkeypatch, order)
    sent = Site(site.config).perform(invitation, order)
    assert sent.metrics == lost.metrics
    assert all(torch.equal(sent.rows[slot], row) for slot, row in lost.rows.items())
    assert len(entries(site)) == 1


def test_a_round_changed_after_a_crash_has_other_noise_and_costs_again(site, invitation, monkeypatch):
    lost = crash(site, invitation, monkeypatch, Order(0, upload=UPLOAD)).rows
    training = {**invitation.experiment["training"], "learning_rate": 2e-3}
    changed = type(invitation)(invitation.run, {**invitation.experiment, "training": training})
    sent = Site(site.config).perform(changed, Order(0, upload=UPLOAD)).rows
    both = torch.stack([torch.cat([rows[slot] for slot in sorted(rows)]) for rows in (lost, sent)])
    assert abs(float(torch.corrcoef(both)[0, 1])) < 5 / both.shape[1] ** 0.5
    assert len(entries(site)) == 2


def test_every_site_and_run_has_its_own_noise_key(tmp_path):
    experiment = small_experiment(privacy={"clip": 1.0, "noise": NOISE})
    keys = set()
    for folder in (tmp_path / "one", tmp_path / "other"):
        found = Federation(experiment, folder)
        for site in found.sites.values():
            site.perform(found.fleet().invitation, Order(0, upload=UPLOAD))
            keys.add(site.client.exchange.noise_key)
    assert len(keys) == 6
    assert {len(key) for key in keys} == {32}


def test_a_run_goes_on_without_sites_whose_budget_is_spent(tmp_path):
    federation = Federation(small_experiment(rounds=3, guard={"noise": NOISE}), tmp_path)
    for name in federation.sites:
        federation.set_up(name, privacy=allowed(1 if name == "home" else 2))
    seen = Watcher()
    seen.refused = []
    seen.aggregated = lambda round, record, seconds: seen.refused.append(dict(record.refused))
    federation.run(seen)
    spent = f"failed: {SPENT}"
    assert seen.refused == [{}, {"home": spent}, dict.fromkeys(federation.sites, spent)]
