import pytest
import torch
from torch.testing import assert_close

from fedhca2.params import Layout, Slot, add_scaled, assign, flatten, layer_products, row_product, unflatten

LAYOUT = Layout(("a.weight", "a.bias", "b.weight"), ((2, 3), (2,), (4,)))


def tensors(rng):
    return {name: torch.randn(shape, generator=rng) for name, shape in zip(LAYOUT.names, LAYOUT.shapes, strict=True)}


def test_unflatten_undoes_flatten(rng):
    values = tensors(rng)
    for name, value in unflatten(flatten(values, LAYOUT), LAYOUT).items():
        assert_close(value, values[name])


def test_flatten_goes_by_name_and_not_by_order(rng):
    values = tensors(rng)
    assert_close(flatten(dict(reversed(values.items())), LAYOUT), flatten(values, LAYOUT))


def test_a_row_is_a_copy(rng):
    values = tensors(rng)
    flatten(values, LAYOUT).zero_()
    assert all(value.any() for value in values.values())


def test_assign_writes_a_row_into_parameters(rng):
    values = {name: torch.nn.Parameter(value) for name, value in tensors(rng).items()}
    row = torch.arange(LAYOUT.numel, dtype=torch.float32)
    assign(values, row, LAYOUT)
    assert_close(flatten(values, LAYOUT), row)


def test_layer_products_sum_to_the_inner_product(rng):
    a, b = torch.randn(2, LAYOUT.numel, generator=rng)
    assert_close(layer_products(a, b, LAYOUT).sum(), a.double() @ b.double())


def test_a_product_of_rows_is_taken_piece_by_piece_in_float64(rng, monkeypatch):
    a, b = torch.randn(2, LAYOUT.numel, generator=rng)
    monkeypatch.setattr("fedhca2.params.TOGETHER", 3)
    assert_close(row_product(a, b), float(a.double() @ b.double()), rtol=1e-12, atol=0)


def test_a_layer_has_weight_and_bias(rng):
    a, b = torch.randn(2, LAYOUT.numel, generator=rng)
    assert_close(layer_products(a, b, LAYOUT)[0], a[:8].double() @ b[:8].double())


def test_equal_scales_per_layer_are_one_scale(rng):
    a, b = torch.randn(2, LAYOUT.numel, generator=rng)
    assert_close(add_scaled(a, b, torch.tensor([0.3, 0.3]), LAYOUT), add_scaled(a, b, torch.tensor([0.3]), LAYOUT))


def test_add_scaled_leaves_its_arguments(rng):
    a, b = torch.randn(2, LAYOUT.numel, generator=rng)
    before = a.clone(), b.clone()
    add_scaled(a, b, torch.tensor([0.5, 2.0]), LAYOUT)
    assert_close((a, b), before)


@pytest.mark.parametrize("text", ["encoder", "decoder.semseg", "head.depth", "encoder_norms", "decoder_norms.edge"])
def test_a_slot_is_read_as_it_is_written(text):
    assert str(Slot.parse(text)) == text


@pytest.mark.parametrize("text", ["", "encoder.semseg", "decoder", "body", "optimizer.semseg"])
def test_what_is_no_slot_is_refused(text):
    with pytest.raises(ValueError, match="expected one of encoder"):
        Slot.parse(text)
