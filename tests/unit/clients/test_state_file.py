import os

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load

from fedhca2.clients import ClientState, StateFileError, load_state, save_state, state_file
from fedhca2.clients.state_file import tensor_file

STATE = ClientState({"a/x": torch.arange(6.0).view(2, 3), "step": torch.tensor(3.0)}, {"client": "home", "ε": [0.1]})


def written(tmp_path):
    path = tmp_path / "state.safetensors"
    return path, save_state(path, STATE)


def is_whole(state):
    same = all(tensor.equal(STATE.tensors[name]) for name, tensor in state.tensors.items())
    return same and (state.tensors.keys(), state.values) == (STATE.tensors.keys(), STATE.values)


def test_a_state_is_read_as_it_was_written_and_leaves_no_other_file(tmp_path):
    path, _ = written(tmp_path)
    assert is_whole(load_state(path))
    assert list(tmp_path.iterdir()) == [path]


def test_states_of_the_version_before_can_be_read(tmp_path, monkeypatch):
    monkeypatch.setattr(state_file, "FORMAT", "fedhca2 state 2")
    path, checksum = written(tmp_path)
    monkeypatch.undo()
    assert checksum == "68abc42c76fc8a249b1289192a5f915b"  # as it was then
    assert load_state(path, checksum).values == STATE.values


def test_tensors_of_any_layout_can_be_written(rng):
    shared = torch.randn(3, 5, generator=rng)
    originals = {
        "a": shared.t(),
        "b": shared,
        "tied": shared,
        "count": torch.tensor(7),
        "half": torch.randn(3, generator=rng).bfloat16(),
        "nothing": torch.empty(0, 2),
        "ä": torch.tensor([True, False]),
    }
    actual = load(tensor_file(originals))
    assert actual.keys() == originals.keys()
    assert all(actual[name].dtype == value.dtype and actual[name].equal(value) for name, value in originals.items())


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("state") / "state.safetensors"
    save_state(path, STATE)
    return path.with_name("changed"), path.read_bytes()


@given(where=st.integers(0, 10**6), bit=st.integers(0, 7))
def test_a_file_with_one_bit_flipped_is_refused_or_the_same(whole, where, bit):
    path, data = whole
    changed = bytearray(data)
    changed[where % len(data)] ^= 1 << bit
    path.write_bytes(changed)
    try:
        assert is_whole(load_state(path))
    except StateFileError:
        return


@given(length=st.integers(0, 10**6), foreign=st.binary(max_size=200))
def test_a_file_cut_short_is_refused_and_so_is_a_foreign_one(whole, length, foreign):
    path, data = whole
    for content in (data[: length % len(data)], foreign):
        path.write_bytes(content)
        with pytest.raises(StateFileError):
            load_state(path)


def test_a_file_that_is_not_there_is_named_and_another_checkpoints_is_refused(tmp_path):
    with pytest.raises(StateFileError, match=r"nothing.safetensors: expected a state of fedhca2, got no file"):
        load_state(tmp_path / "nothing.safetensors")
    with pytest.raises(StateFileError, match="belongs to another checkpoint"):
        load_state(written(tmp_path)[0], "0" * 32)


def test_a_full_disk_leaves_the_earlier_file(tmp_path, monkeypatch):
    path, checksum = written(tmp_path)

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device") as error:
        save_state(path, ClientState({}, {"client": "another"}))
    assert (error.value.filename, load_state(path, checksum).values) == (str(path), STATE.values)
