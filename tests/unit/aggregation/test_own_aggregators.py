"""What the answers of a user's own aggregator have to be, before anything is trained."""

import logging
from typing import ClassVar

import numpy as np
import pytest
import torch
from pydantic import PrivateAttr

from fedhca2.aggregation import Aggregator, Mean, Member, Mixing, is_shared
from fedhca2.aggregation import try_aggregator as tried
from fedhca2.errors import UserError
from fedhca2.methods import Blend, Combiner, CommonUpdate, GroupMean, TiesMerging
from fedhca2.params import Layout

MEMBERS = [Member(name, "group") for name in "abc"]
LAYOUT = Layout(("x.weight", "y.weight"), ((2,), (3,)))
EVERYONE = (0, 0, 0)


class Own(Aggregator):
    """Answers with the mixing of the test."""

    sends = "updates"
    measure = "rows"
    _answer: object = PrivateAttr(None)

    def mixing(self, products, members, layout):
        return self._answer(products) if callable(self._answer) else self._answer


class OwnWeights(CommonUpdate):
    """Gives updates the weights of the test."""

    _answer: object = PrivateAttr(None)

    def weights(self, gram):
        return self._answer


class OwnRows(Combiner):
    """Combines columns by the function of the test."""

    _answer: object = PrivateAttr(None)

    def combine(self, block, members, measured):
        return self._answer(block)


class OwnKept(Mean):
    """Renews rows by the function of the test."""

    keeps_rows: ClassVar[int] = 1
    _answer: object = PrivateAttr(None)

    def renew(self, mixed, kept):
        return self._answer(mixed, kept)


def answering(answer, kind):
    own = kind()
    own._answer = answer
    return own


def blend(weights, gets=EVERYONE, **options):
    return Mixing("start", (Blend(weights, gets, **options),))


USABLE = [
    (Own, blend(torch.full((2, 1, 3), 1 / 3))),
    (OwnRows, lambda block: block[:1]),
    (OwnKept, lambda mixed, kept: (mixed + kept.sum(dim=0), mixed)),
]
UNUSABLE = [
    (Own, None, "expected a Mixing, got NoneType"),
    (Own, Mixing("middle", ()), "base: expected trained, start, nothing"),
    (Own, Mixing("start", ("blend",)), "expected Blends, got str"),
    (Own, blend(torch.ones(1, 4)), r"weights: expected 3.*\[1, 4\]"),
    (Own, blend(torch.ones(3)), r"weights: expected the shape \[M, 3\]"),
    (Own, blend(torch.ones(5, 1, 3)), r"\[2, M, 3\] by tensor, got \[5, 1, 3\]"),
    (Own, blend(np.ones((1, 3))), "expected a torch.Tensor, got ndarray"),
    (Own, blend(torch.full((1, 3), torch.nan)), "expected finite numbers"),
    (Own, blend(torch.ones(1, 3), (0, 0)), "gets: expected 3 numbers of mixed rows"),
    (Own, blend(torch.ones(1, 3), (0, 0, 1)), "gets: .* from 0 to 0"),
    (Own, blend(torch.ones(1, 3), hyper=True), "first_weights"),
    (Own, Mixing("start", (), keeps=(1.0,)), "keeps: expected 3 finite numbers"),
    (Own, lambda products: products[9], r"IndexError.*test_own_aggregators.py, line \d+"),
    (OwnWeights, torch.ones(4), r"weights: expected 3, one for each member, got the shape \[4\]"),
    (OwnRows, lambda block: block[0], r"expected the shape \[1, 6\], got \[6\]"),
    (OwnRows, lambda block: block, r"expected the shape \[1, 6\], got \[3, 6\]"),
    (OwnRows, lambda block: None, "got NoneType"),
    (OwnRows, lambda block: block[:1] / 0, "expected finite rows"),
    (OwnRows, lambda block: block[:1] - block[:1].mean(), "expected every column to be made from itself alone"),
    (OwnRows, lambda block: block[9], r"IndexError.*test_own_aggregators.py, line \d+"),
    (OwnKept, lambda mixed, kept: mixed, "renew"),
    (OwnKept, lambda mixed, kept: (mixed, kept), r"renew.*1 to keep.*\[2, 6\]"),
    (OwnKept, lambda mixed, kept: (mixed, torch.cat([kept, mixed])), r"\[2, 6\], got \[3, 6\]"),
    (OwnKept, lambda mixed, kept: (mixed / 0, mixed), "expected finite rows"),
]


def test_usable_answers_are_accepted():
    for kind, answer in USABLE:
        tried(answering(answer, kind), "encoder", MEMBERS, LAYOUT)


@pytest.mark.parametrize(("kind", "answer", "words"), UNUSABLE)
def test_an_unusable_answer_is_one_line_with_its_part_and_class(kind, answer, words):
    with pytest.raises(UserError, match=rf"^method.decoder: {kind.__name__} of .*{words}") as error:
        tried(answering(answer, kind), "decoder", MEMBERS, LAYOUT)
    assert len(error.value.lines) == 1


class Counting(Aggregator):
    """Remembers in itself how often it was called."""

    sends = "updates"
    measure = "nothing"
    _calls: int = PrivateAttr(0)

    def mixing(self, products, members, layout):
        self._calls += 1
        return blend(torch.full((1, 3), float(self._calls)))


def test_an_aggregator_that_remembers_is_named_in_a_warning(caplog):
    own = Counting()
    with caplog.at_level(logging.WARNING):
        tried(own, "encoder", MEMBERS, LAYOUT)
    assert "Counting" in caplog.text
    assert "Mixing.keeps" in caplog.text
    assert own._calls == 0


@pytest.mark.parametrize(
    ("aggregator", "groups", "shared"),
    [
        (Mean(), "ab", True),
        (Mean(), "a", False),
        (GroupMean(), "aa", True),
        (GroupMean(), "ab", False),
        (TiesMerging(), "ab", True),
    ],
)
def test_only_members_that_get_rows_of_others_share(aggregator, groups, shared):
    members = [Member(str(number), group) for number, group in enumerate(groups)]
    assert is_shared(aggregator, "encoder", members, LAYOUT) == shared
