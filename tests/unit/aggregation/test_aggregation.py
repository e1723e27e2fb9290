import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from fedhca2.aggregation import Mean, Member, Rows, Weights
from fedhca2.aggregation.fedhca2 import attention
from fedhca2.aggregation.means import clusters_of, voting_weights
from fedhca2.experiment import Experiment
from fedhca2.methods import Attentive, Clustered, ConflictAverse, CrossAttention, GroupMean, HyperWeights, Pull, Voting
from fedhca2.params import Layout

LAYOUT = Layout(("a.weight", "a.bias", "b.weight"), ((40, 5), (7,), (10, 10)))
MEMBERS = [Member("a", "x:seg", 1), Member("b", "y:seg", 2), Member("c", "x:seg", 3), Member("d", "y:edge", 4)]


@pytest.fixture
def data():
    rng = torch.Generator().manual_seed(0)
    return [torch.randn(LAYOUT.numel, generator=rng) for _ in MEMBERS]


def mixed(aggregator, data, members=MEMBERS):
    """Every member's next value, if it started at zero and training added its row."""
    rows = Rows(members, LAYOUT, data)
    mixing = aggregator.mixing(rows.products(aggregator.measure), members, LAYOUT)
    totals = [row.clone() if mixing.base == "trained" else torch.zeros_like(row) for row in data]
    for blend in mixing.blends:
        actual = rows.mix(blend.weights)
        totals = [total + actual[gets] for total, gets in zip(totals, blend.gets, strict=True)]
    return torch.stack(totals)


def test_a_row_of_another_length_is_an_error(data):
    with pytest.raises(ValueError, match="c: expected a row of 307 values"):
        Rows(MEMBERS, LAYOUT, [*data[:2], data[2][1:], data[3]])


@pytest.mark.parametrize(
    ("aggregator", "weights"),
    [
        (Mean(), [0.25, 0.25, 0.25, 0.25]),
        (Mean(by="samples"), [0.1, 0.2, 0.3, 0.4]),
        (GroupMean(), [0.5, 0, 0.5, 0]),  # by group, not by position
        (GroupMean(by="samples"), [0.25, 0, 0.75, 0]),
        (Pull(gamma=1), [0.25, 0.25, 0.25, 0.25]),
        (Pull(gamma=0), [0.5, 0, 0.5, 0]),
        (Pull(gamma=0.5), [0.375, 0.125, 0.375, 0.125]),
    ],
)
def test_means_of_all_and_of_groups(data, aggregator, weights):
    actual = mixed(aggregator, data)
    assert_close(actual[0], torch.tensor(weights) @ torch.stack(data))
    assert torch.equal(actual[0], actual[2])


@pytest.mark.parametrize(("until", "shares"), [(0.5, [1, 0.75, 0.5, 0.25, 0, 0, 0, 0]), (0, [0] * 8)])
def test_a_pull_falls_to_nothing_in_a_part_of_the_rounds(until, shares):
    method = Experiment.load("demo", ["rounds=8", "method=fedpull", f"method.until={until}"]).resolved_method
    assert [method.aggregators(round)["encoder"].gamma for round in range(8)] == pytest.approx(shares)


def test_what_is_added_may_be_rescaled_and_is_the_mean_if_the_radius_is_zero(data):
    own = torch.stack(data)
    added = {rescale: mixed(ConflictAverse(rescale=rescale), data) - own for rescale in ("released", "none")}
    assert_close((1 + 0.4**2) * added["released"], added["none"], rtol=1e-5, atol=1e-5)
    assert_close(mixed(ConflictAverse(c=0), data) - own, own.mean(dim=0).expand(4, -1), rtol=1e-5, atol=1e-6)


def test_attention_per_layer_takes_weight_and_bias_together(data):
    layer = torch.stack(data)[:, :207]
    added = mixed(CrossAttention(per="layer"), data)[:, :207] - layer
    assert_close(added, attention(layer @ layer.T, 207).float() @ layer, rtol=1e-5, atol=1e-5)


def test_cosine_attention_ignores_length_and_at_low_temperature_attends_to_itself(data):
    gram = torch.stack(data) @ torch.stack(data).T
    actual, same, own = (
        attention(*each, "cosine", t) for *each, t in ((gram, 1, 0.5), (1e4 * gram, 9, 0.5), (gram, 1, 1e-3))
    )
    assert_close(actual, same)
    assert_close(own, torch.eye(4, dtype=torch.float64))


def attentive(models, **settings):
    """FedAMP's weights of these models."""
    members = [Member("", "")] * len(models)
    return Attentive(**settings).mixing((models @ models.T)[None], members, LAYOUT).blends[0].weights


def test_fedamp_of_two_models_is_the_formula_and_of_many_a_convex_mixture(rng):
    models = torch.tensor([[0.0], [0.8]])
    xi = np.exp(-0.64 / 0.5) * 0.3 / 0.5
    expected = torch.tensor([[1 - xi, xi], [xi, 1 - xi]])
    assert_close(attentive(models, alpha=0.3, sigma=0.5), expected, check_dtype=False)
    assert_close(attentive(1e3 * models), torch.eye(2), check_dtype=False)  # far models are left alone
    for spread in (0.0, 0.1, 1.0, 100.0):
        weights = attentive(1 + spread * torch.randn(5, 3, generator=rng, dtype=torch.float64))
        assert (weights >= 0).all()
        assert_close(weights.sum(dim=1), torch.ones(5, dtype=torch.float64))


def test_equal_models_are_one_cluster_and_members_get_the_mean_of_theirs():
    assert clusters_of(torch.full((4, 4), 3.0), 2) == [1, 1, 1, 1]  # equal models are one cluster
    data = [torch.full((LAYOUT.numel,), value) for value in (1.0, 1.2, 3.0, 3.2)]
    assert_close(mixed(Clustered(), data)[:, 0], torch.tensor([1.1, 1.1, 3.1, 3.1]))


def test_voting_weights_are_mean_similarities_of_friends_chosen_by_all_layers():
    layers = torch.tensor([[[1.0, 0.5], [0.5, 1.0]], [[1.0, -0.5], [-0.5, 1.0]]])
    assert_close(voting_weights(layers, friends=2)[0], torch.tensor([5 / 6, 1 / 6], dtype=torch.float64))
    layers = torch.eye(4).repeat(3, 1, 1)
    layers[:, 0] = torch.tensor([[1.0, 0.9, 0.8, 0.1], [1.0, 0.9, 0.8, 0.1], [1.0, 0.2, 0.1, 0.9]])
    assert voting_weights(layers, friends=2)[0].nonzero().flatten().tolist() == [0, 1]


VOTERS = Layout(("a.weight", "a.bias", "table", "norm.weight", "b.weight"), ((2, 2), (2,), (3, 3), (2,), (2, 2, 1, 1)))


def test_the_last_weights_of_layers_vote_and_one_is_needed():
    assert (Voting(layers=8).voters(VOTERS), Voting(layers=1).voters(VOTERS)) == ([0, 4], [4])
    with pytest.raises(ValueError, match="expected a weight of two or more dimensions"):
        Voting().voters(Layout(("a.bias",), ((2,),)))


AGREEMENTS = st.lists(st.floats(-50, 50), min_size=1, max_size=12)


def by_torch(learned, start, agreements):
    """The same with torch's SGD."""
    weight = torch.tensor([start], dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.SGD([weight], lr=learned.lr, momentum=learned.momentum, weight_decay=learned.weight_decay)
    for agreement in agreements:
        inside = (weight >= 0) & (weight <= 1)
        weight.grad = -agreement * inside.double()
        optimiser.step()
    return weight.item()


@settings(deadline=None)
@given(st.floats(0, 1), AGREEMENTS)
def test_steps_are_those_of_sgd(start, agreements):
    learned = HyperWeights(weight_decay=0.01)
    weights = Weights.start([start])
    for agreement in agreements:
        weights = learned.step(weights, [agreement])
    assert weights.applied[0] == min(max(weights.value[0], 0), 1)
    assert weights.value[0] == pytest.approx(by_torch(learned, start, agreements), rel=1e-12, abs=1e-12)


@pytest.mark.parametrize(
    ("settings", "before", "agreement", "after"),
    [
        ({}, ((1.05,), (-1.0,)), [-100.0], ((1.05 + 0.01 * 0.9,), (-0.9,))),  # masked weights drift on their momentum
        ({"clamp": "project"}, ((0.95,), (-10.0,)), [0.0], ((1.0,), (0.0,))),  # projected ones lose it
        ({"learn": False}, ((0.1, 0.2), (0.0, 0.0)), [5.0, 5.0], ((0.1, 0.2), (0.0, 0.0))),
        ({}, ((0.5, 0.5), (0.0, 0.0)), [1.0, 0.0], ((0.51, 0.5), (-1.0, 0.0))),  # each layer learns on its own
    ],
)
def test_one_step(settings, before, agreement, after):
    actual = HyperWeights(weight_decay=0, **settings).step(Weights(*before), agreement)
    assert (actual.value, actual.momentum) == (pytest.approx(after[0]), pytest.approx(after[1]))
