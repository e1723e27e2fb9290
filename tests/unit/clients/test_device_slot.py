"""How a client's small tensors are copied to a device and back."""

import torch
from torch import nn

from fedhca2.clients.device_slot import copied_together


def test_copies_have_the_values_and_shapes_of_the_originals(rng):
    originals = [torch.randn(3, 5, generator=rng), torch.randn((), generator=rng), torch.empty(0), torch.ones(300)]
    copies = copied_together(originals, torch.clone)
    assert all(copy.equal(original) for copy, original in zip(copies, originals, strict=True))


def test_copies_are_aligned_as_new_tensors_are():
    copies = copied_together([torch.ones(3), torch.ones(5, 7), torch.ones(2)], torch.clone)
    assert {(copy.data_ptr() - copies[0].data_ptr()) % 256 for copy in copies} == {0}


def test_everything_is_copied_at_once():
    sources = []
    copied_together([torch.ones(3), torch.ones(4)], lambda packed: sources.append(packed) or packed.clone())
    assert len(sources) == 1


def test_a_copy_may_change_while_autograd_holds_another():
    """As with a counter of batches, which is counted up between an index's use and its gradient."""
    index, counter = copied_together([torch.tensor([0, 1, 1]), torch.tensor(7)], torch.clone)
    weight = nn.Parameter(torch.ones(2))
    taken = weight[index] * 2
    counter.add_(1)
    taken.sum().backward()
    assert weight.grad.tolist() == [2, 4]
