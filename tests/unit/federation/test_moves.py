"""Parameters that are farther away than training can move them."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedhca2.clients import Privacy, Schedule, Training
from fedhca2.experiment import GuardBounds
from fedhca2.federation.guard import Guard, Reach
from fedhca2.federation.server import Server
from fedhca2.messages import Profile, Reply
from fedhca2.methods import METHODS, resolve
from fedhca2.params import Layout, Slot
from fedhca2.run_folder.records import ServerState

ENCODER, EDGE = Slot("encoder"), Slot("decoder", "edge")
VALUES = 400
LAYOUT = Layout(("a.weight",), ((VALUES,),))
STEADY = Training(learning_rate=1e-3, schedule=Schedule(warmup_epochs=0, lowest=1e-3, lag=False))
REACHED = 10 * 1.05 * 7.27 * 1e-3 * VALUES**0.5  # in a round of ten steps
START = torch.randn(VALUES, generator=torch.Generator().manual_seed(7))


def federation(method, names="abcd", privacy=None, guard=None, slots=(ENCODER, EDGE)):
    profiles = [Profile(name, "outdoor", ("edge",), 80, dict.fromkeys(slots, LAYOUT)) for name in names]
    reach = Reach(STEADY, privacy or Privacy(), rounds=10, epochs=dict.fromkeys(names, 1))
    return Guard(Server(method, profiles), guard or GuardBounds(), reach)


def trained(name, round, starts, spoil=lambda row: row):
    """A client's parameters after ten honest steps, then spoiled."""
    rng = torch.Generator().manual_seed(ord(name) + 1000 * round)
    rows = {slot: spoil(start + 1e-3 * torch.randn(VALUES, generator=rng)) for slot, start in starts.items()}
    return Reply(name, round, rows)


def refusals(method, spoil, *, at, names="abcd", away=None, guard=None):
    """What the server refuses in the round in which one client spoils its rows; it is honest before that."""
    own = federation(METHODS[method], names, guard=guard)
    state, sent, record = ServerState(), {}, None
    at_start = {name: {ENCODER: START, EDGE: START.roll(ord(name))} for name in names}
    for round in range(at + 1):
        parts = own.server.method.uploads(round)
        replies = []
        for name in names:
            if (name, round) == away:
                continue
            rows = at_start[name] | {slot: delivery.row for slot, delivery in sent.get(name, {}).items()}
            rows = {slot: row for slot, row in rows.items() if slot.part in parts}
            guilty = name == names[-1] and round == at
            replies.append(trained(name, round, rows, spoil if guilty else lambda row: row))
        state, sent, record = own.step(state, replies, sent)
    return record.refused


SPOILT = {
    "turned round": lambda row: -row,
    "a hundred times as long": lambda row: 100 * row,
    "a model of its own": lambda row: row.flip(0),
    "not finite": lambda row: torch.full_like(row, torch.inf),
}
AVERAGING = ["fedavg", "fedper", "fedprox", "ditto", "fedbabu", "matfl", "single_task_fl", "fedpull"]


@pytest.mark.parametrize("spoilt", SPOILT.values(), ids=SPOILT)
@pytest.mark.parametrize(("method", "at"), [("fedper", 0), *((method, 2) for method in (*AVERAGING, "fedamp"))])
def test_parameters_from_elsewhere_are_refused(method, at, spoilt):
    """In the first round by the encoders' common start."""
    assert list(refusals(method, spoilt, at=at)) == ["d"]


def test_of_two_clients_that_differ_both_are_refused_in_the_first_round():
    assert list(refusals("fedper", lambda row: -row, at=0, names="ab")) == ["a", "b"]


@pytest.mark.parametrize("reach", [0.5, 0.1])  # the distance between fresh decoders is not scaled by the share of steps
@pytest.mark.parametrize("method", [*AVERAGING, "fedamp", "fedsta"])
@pytest.mark.parametrize("round", [0, 1, 2])
def test_honest_parameters_are_accepted(method, round, reach):
    assert not refusals(method, lambda row: row, at=round, guard=GuardBounds(reach=reach))


@pytest.mark.parametrize(
    "changes", [{"spoil": torch.Tensor.bfloat16}, {"spoil": torch.Tensor.half}, {"away": ("d", 1)}]
)
def test_rounding_and_absence_do_not_count_as_moves(changes):
    assert not refusals("fedper", **{"spoil": lambda row: row, "at": 2, **changes})


@pytest.mark.parametrize("method", ["fedavg", "fedper"])
def test_a_reply_that_another_client_lost_loosens_no_bound(method):
    """Half of what two clients may move in four rounds is far more than what one client may move in one round."""
    farther = 4 * REACHED * torch.ones(VALUES) / VALUES**0.5
    assert list(refusals(method, lambda row: row + farther, at=3, away=("b", 2))) == ["d"]


@pytest.mark.parametrize("reach", [1.0, 0.1])
def test_agreed_noise_is_accepted(reach):
    own = federation(METHODS["fedper"], privacy=Privacy(clip=1.0, noise=2.0), guard=GuardBounds(reach=reach))
    rng = torch.Generator().manual_seed(0)
    noised = [Reply(name, 0, {ENCODER: START + 2 * torch.randn(VALUES, generator=rng)}) for name in "abcd"]
    assert not own.step(ServerState(), noised)[2].refused


@pytest.mark.parametrize(("times", "refused"), [(20.0, []), (1e4, ["d"])])
def test_statistics_are_compared_with_the_others_by_length(times, refused):
    norms = Slot("encoder_norms")
    own = federation(resolve("fedper", {"batch_norm": "average"}), slots=(ENCODER, norms))
    replies = [Reply(name, 0, {ENCODER: START, norms: START * (times if name == "d" else 1)}) for name in "abcd"]
    assert list(own.step(ServerState(), replies)[2].refused) == refused


gradients = st.lists(
    st.sampled_from([0.0, 1e-6, 1e-3, 1.0, 1e3]) | st.floats(-1e3, 1e3, width=32), min_size=1, max_size=30
)


@settings(max_examples=60, deadline=None)
@given(steps=gradients, amsgrad=st.booleans())
def test_no_gradients_move_a_value_farther_than_the_reach(steps, amsgrad):
    value = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = torch.optim.AdamW([value], lr=1e-3, amsgrad=amsgrad)
    for gradient in steps:
        value.grad = torch.tensor([gradient], dtype=torch.float64)
        optimizer.step()
    reach = Reach(STEADY, Privacy(), rounds=1, epochs={"a": 1})
    profile = Profile("a", "outdoor", ("edge",), STEADY.batch_size * len(steps), {})
    assert abs(float(value.detach())) <= reach.of_row(profile, "encoder", 1, range(1), profile.samples).within(1.0)
