"""How small tensors are copied and moved together."""

import pytest
import torch
from torch import nn

from fedhca2.params import concatenate, copy_packed, split_like


def test_copies_have_the_values_and_shapes_of_the_originals(rng):
    originals = [torch.randn(3, 5, generator=rng), torch.randn((), generator=rng), torch.empty(0), torch.ones(300)]
    copies = copy_packed(originals, torch.clone)
    assert all(copy.equal(original) for copy, original in zip(copies, originals, strict=True))


def test_copies_are_aligned_as_new_tensors_are():
    copies = copy_packed([torch.ones(3), torch.ones(5, 7), torch.ones(2)], torch.clone)
    assert {(copy.data_ptr() - copies[0].data_ptr()) % 256 for copy in copies} == {0}


def test_everything_is_copied_at_once():
    sources = []
    copy_packed([torch.ones(3), torch.ones(4)], lambda packed: sources.append(packed) or packed.clone())
    assert len(sources) == 1


def test_a_copy_may_change_while_autograd_holds_another():
    """As with a counter of batches, which is counted up between an index's use and its gradient."""
    index, counter = copy_packed([torch.tensor([0, 1, 1]), torch.tensor(7)], torch.clone)
    weight = nn.Parameter(torch.ones(2))
    taken = weight[index] * 2
    counter.add_(1)
    taken.sum().backward()
    assert weight.grad.tolist() == [2, 4]


def test_copies_keep_their_types_and_order():
    originals = [
        torch.tensor(1),
        torch.ones(3),
        torch.tensor([True]),
        torch.ones(2, dtype=torch.bfloat16),
        torch.zeros(4),
    ]
    copies = copy_packed(originals)
    assert [copy.dtype for copy in copies] == [original.dtype for original in originals]
    assert all(copy.equal(original) for copy, original in zip(copies, originals, strict=True))


@pytest.mark.parametrize("shapes", [[(2, 3)], [(2, 3), (), (0,), (5,)]])
def test_a_row_is_a_copy_that_comes_apart_again(shapes, rng):
    originals = [nn.Parameter(torch.randn(shape, generator=rng)) for shape in shapes]
    row = concatenate(originals)
    assert not row.requires_grad
    assert all(part.equal(whole) for part, whole in zip(split_like(row, originals), originals, strict=True))
    row.zero_()
    assert originals[0].all()
