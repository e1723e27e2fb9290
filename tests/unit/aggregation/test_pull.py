"""fedpull: its share of the mean of all, and how it falls."""

import pytest
import torch

from fedhca2.aggregation import GroupMean, Mean, Member, Pull
from fedhca2.experiment import Experiment
from fedhca2.methods import METHODS
from fedhca2.params import Layout

LAYOUT = Layout(("w",), ((3,),))
MEMBERS = [Member("a", "x"), Member("b", "y"), Member("c", "x")]


def given(aggregator: GroupMean | Mean | Pull) -> torch.Tensor:
    """The weights of what each member gets, [N, N]."""
    (blend,) = aggregator.mixing(torch.empty(0), MEMBERS, LAYOUT).blends
    return blend.weights[list(blend.gets)]


def test_it_goes_from_the_mean_of_all_to_the_mean_of_the_group() -> None:
    torch.testing.assert_close(given(Pull(gamma=1)), given(Mean()))
    torch.testing.assert_close(given(Pull(gamma=0)), given(GroupMean()))
    torch.testing.assert_close(given(Pull(gamma=0.25)), 0.25 * given(Mean()) + 0.75 * given(GroupMean()))


@pytest.mark.parametrize(("until", "shares"), [(0.5, [1, 0.75, 0.5, 0.25, 0, 0, 0, 0]), (0, [0] * 8)])
def test_its_share_falls_to_nothing_in_a_part_of_the_rounds(until: float, shares: list[float]) -> None:
    settings = ["rounds=8", "method=fedpull", f"method.until={until}"]
    method = Experiment.load("demo", settings).resolved_method
    encoders = [method.aggregators(round)["encoder"] for round in range(8)]
    assert [encoder.gamma for encoder in encoders if isinstance(encoder, Pull)] == pytest.approx(shares)


def test_a_longer_run_shares_for_more_rounds() -> None:
    method = METHODS["fedpull"]
    shared = [
        sum(method.over(rounds).aggregators(round)["encoder"].gamma > 0 for round in range(rounds))  # type: ignore[attr-defined]
        for rounds in (8, 40)
    ]
    assert shared == [3, 15]
