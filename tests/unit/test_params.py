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


def test_a_row_comes_apart_into_what_it_was_made_of(values):
    row = flatten(dict(reversed(values.items())), LAYOUT)  # it goes by name and not by order
    assert not row.requires_grad
    assert all(piece.equal(values[name]) for name, piece in unflatten(row, LAYOUT).items())


def test_a_row_is_a_copy(values):
    flatten(values, LAYOUT).zero_()
    assert all(value.any() for value in values.values())


def test_assign_writes_a_row_into_parameters(values):
    row = torch.arange(LAYOUT.numel, dtype=torch.float32)
    assign(values, row, LAYOUT)
    assert_close(flatten(values, LAYOUT), row)


def test_a_layer_has_weight_and_bias(pair):
    a, b = pair.double()
    assert_close(layer_products(*pair, LAYOUT), torch.stack([a[:8] @ b[:8], a[8:] @ b[8:]]))


def test_a_product_of_rows_is_taken_piece_by_piece_in_float64(pair, monkeypatch):
    a, b = pair.double()
    monkeypatch.setattr("fedhca2.params.TOGETHER", 3)
    assert_close(row_product(*pair), float(a @ b), rtol=1e-12, atol=0)


def test_equal_scales_per_layer_are_one_scale(pair):
    scales = torch.tensor([0.3, 0.3]), torch.tensor([0.3])
    assert_close(*(add_scaled(*pair, scale, LAYOUT) for scale in scales))


def test_add_scaled_leaves_its_arguments(pair):
    before = pair.clone()
    add_scaled(*pair, torch.tensor([0.5, 2.0]), LAYOUT)
    assert_close(pair, before)


@pytest.mark.parametrize("text", ["encoder", "decoder.semseg", "head.depth", "encoder_norms", "decoder_norms.edge"])
def test_a_slot_is_read_as_it_is_written(text):
    assert str(Slot.parse(text)) == text


@pytest.mark.parametrize("text", ["", "encoder.semseg", "decoder", "body", "optimizer.semseg"])
def test_what_is_no_slot_is_refused(text):
    with pytest.raises(ValueError, match="expected one of encoder"):
        Slot.parse(text)


MIXED = [torch.tensor(1), torch.ones(3, 2), torch.empty(0), torch.tensor([True]), torch.ones(300, dtype=torch.bfloat16)]


def test_packed_copies_keep_their_values_types_and_order():
    copies = copy_packed(MIXED)
    assert all(
        copy.equal(original) and copy.dtype == original.dtype for copy, original in zip(copies, MIXED, strict=True)
    )


def test_tensors_of_one_type_are_moved_at_once_and_are_aligned_as_new_ones_are():
    sources = []
    copies = copy_packed(
        [torch.ones(3), torch.ones(5, 7), torch.ones(2)], lambda packed: sources.append(packed) or packed
    )
    assert len(sources) == 1
    assert {(copy.data_ptr() - copies[0].data_ptr()) % 256 for copy in copies} == {0}


def test_a_copy_may_change_while_autograd_holds_another():
    """As with a counter of batches, which is counted up between an index's use and its gradient."""
    index, counter = copy_packed([torch.tensor([0, 1, 1]), torch.tensor(7)], torch.clone)
    weight = nn.Parameter(torch.ones(2))
    taken = weight[index] * 2
    counter.add_(1)
    taken.sum().backward()
    assert weight.grad.tolist() == [2, 4]
