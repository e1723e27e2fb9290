import pytest
import torch
from torch import nn
from torch.testing import assert_close

from fedhca2.params import (
    Layout,
    Slot,
    add_scaled,
    assign,
    copy_packed,
    flatten,
    layer_products,
    row_product,
    unflatten,
)

LAYOUT = Layout(("a.weight", "a.bias", "b.weight"), ((2, 3), (2,), (4,)))


@pytest.fixture
def values(rng):
    return {
        name: nn.Parameter(torch.randn(shape, generator=rng))
        for name, shape in zip(LAYOUT.names, LAYOUT.shapes, strict=True)
    }


@pytest.fixture
def pair(rng):
    return torch.randn(2, LAYOUT.numel, generator=rng)


def test_a_row_is_a_copy_that_comes_apart_into_what_it_was_made_of(values):
    row = flatten(dict(reversed(values.items())), LAYOUT)  # it goes by name and not by order
    assert not row.requires_grad
    assert all(piece.equal(values[name]) for name, piece in unflatten(row, LAYOUT).items())
    row.zero_()
    assert all(value.any() for value in values.values())
    assign(values, torch.arange(LAYOUT.numel, dtype=torch.float32), LAYOUT)
    assert_close(flatten(values, LAYOUT), torch.arange(LAYOUT.numel, dtype=torch.float32))


def test_products_are_taken_in_float64_by_layer_or_piece_by_piece(pair, monkeypatch):
    a, b = pair.double()
    assert_close(layer_products(*pair, LAYOUT), torch.stack([a[:8] @ b[:8], a[8:] @ b[8:]]))
    monkeypatch.setattr("fedhca2.params.TOGETHER", 3)
    assert_close(row_product(*pair), float(a @ b), rtol=1e-12, atol=0)


def test_equal_scales_per_layer_are_one_scale_and_leave_their_arguments(pair):
    before = pair.clone()
    scales = torch.tensor([0.3, 0.3]), torch.tensor([0.3])
    assert_close(*(add_scaled(*pair, scale, LAYOUT) for scale in scales))
    assert_close(pair, before)


@pytest.mark.parametrize("text", ["", "encoder.semseg", "decoder", "body", "optimizer.semseg"])
def test_a_slot_is_read_as_it_is_written_and_what_is_no_slot_is_refused(text):
    for slot in ("encoder", "decoder.semseg", "head.depth", "encoder_norms", "decoder_norms.edge"):
        assert str(Slot.parse(slot)) == slot
    with pytest.raises(ValueError, match="expected one of encoder"):
        Slot.parse(text)


MIXED = [torch.tensor(1), torch.ones(3, 2), torch.empty(0), torch.tensor([True]), torch.ones(300, dtype=torch.bfloat16)]


def test_packed_copies_move_once_for_each_type_and_keep_values_and_order():
    moves = []
    copies = copy_packed(MIXED, lambda packed: moves.append(packed.dtype) or packed)
    assert all(map(torch.equal, copies, MIXED))
    assert [copy.dtype for copy in copies] == [original.dtype for original in MIXED]
    assert len(moves) == len(set(moves)) == 4
    same = copy_packed([torch.ones(3), torch.ones(5, 7), torch.ones(2)])
    assert {(copy.data_ptr() - same[0].data_ptr()) % 256 for copy in same} == {0}


def test_a_copy_may_change_while_autograd_holds_another():
    """As with a counter of batches, which is counted up between an index's use and its gradient."""
    index, counter = copy_packed([torch.tensor([0, 1, 1]), torch.tensor(7)], torch.clone)
    weight = nn.Parameter(torch.ones(2))
    doubled = weight[index] * 2
    counter.add_(1)
    doubled.sum().backward()
    assert weight.grad.tolist() == [2, 4]
