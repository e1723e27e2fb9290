import json
from dataclasses import replace
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedhca2.clients import Privacy, Schedule, Training
from fedhca2.experiment.settings import GuardBounds
from fedhca2.federation.gate import plain
from fedhca2.federation.guard import Guard, Reach
from fedhca2.federation.server import Server
from fedhca2.messages import Effect, Profile, Reply
from fedhca2.methods import METHODS, resolve
from fedhca2.params import Layout, Slot
from fedhca2.run_folder.records import ServerState

ENCODER, EDGE, HEAD = Slot("encoder"), Slot("decoder", "edge"), Slot("head", "edge")
LAYOUT = Layout(("a.weight", "b.weight"), ((2, 2), (2, 1)))
LAYOUTS = {ENCODER: LAYOUT, EDGE: LAYOUT, HEAD: LAYOUT}
NAMES = ("a", "b", "c", "d")
PROFILES = [Profile(name, "outdoor", ("edge",), 8, LAYOUTS) for name in NAMES]
# One step a round with a learning rate of 1: a row of six values can move by 1.05 · 7.27 · √6 = 18.7.
STEADY = Training(learning_rate=1.0, schedule=Schedule(warmup_epochs=0, lowest=1.0, lag=False))
REACH = Reach(STEADY, Privacy(), rounds=10, epochs=dict.fromkeys(NAMES, 1))


def reply(client, round=1, scale=1.0):
    rng = torch.Generator().manual_seed(ord(client) + 100 * round)
    rows = {ENCODER: scale * torch.randn(6, generator=rng), EDGE: scale * torch.randn(6, generator=rng)}
    agreement = {ENCODER: (0.5,), EDGE: (0.5, 0.1)} if round else {}
    return Reply(client, round, rows, agreement, {"edge": 0.3}, {"edge": {"ods_f": 0.2}}, 1.0)


def guard(**bounds):
    return Guard(Server(resolve("fedhca2"), PROFILES), GuardBounds(**bounds), REACH)


@cache
def _first_round():
    own = guard()
    return own.step(ServerState(), [reply(name, 0) for name in NAMES])[0]


def second_round(replies, **bounds):
    """The server's outcome for these replies after a first round without faults."""
    return guard(**bounds).step(_first_round(), replies)


def with_row(value):
    return lambda good: replace(good, rows={**good.rows, ENCODER: value})


def with_(**changes):
    return lambda good: replace(good, **changes)


NUMBERS = "expected 6 floating-point numbers"
FAULTS = {
    "unknown client": (with_(client="eve"), "client: expected one of a, b, c, d, got 'eve'"),
    "earlier round": (with_(round=0), "round: expected 1, got 0"),
    "later round": (with_(round=7), "round: expected 1, got 7"),
    "missing row": (lambda good: replace(good, rows={ENCODER: good.rows[ENCODER]}), "rows: expected"),
    "a head": (lambda good: replace(good, rows={**good.rows, HEAD: torch.ones(6)}), "rows: expected"),
    "short row": (with_row(torch.ones(5)), f"{NUMBERS}, got shape (5,)"),
    "oversize row": (with_row(torch.ones(60_000)), f"{NUMBERS}, got shape (60000,)"),
    "whole numbers": (with_row(torch.ones(6, dtype=torch.int64)), f"{NUMBERS}, got torch.int"),
    "complex row": (with_row(torch.ones(6, dtype=torch.complex64)), NUMBERS),
    "sparse row": (with_row(torch.ones(6).to_sparse()), NUMBERS),
    "no tensor": (with_row([1.0] * 6), f"{NUMBERS}, got list"),
    "NaN": (with_row(torch.tensor([1.0, 2.0, torch.nan, 0.0, 0.0, 0.0])), "expected finite values"),
    "infinities": (with_row(torch.tensor([torch.inf, -torch.inf, 0, 0, 0, 0])), "expected finite values"),
    "large norm": (with_row(torch.full((6,), 1e9)), "a move of at most 18.7, what its steps and learning rates allow"),
    "NaN agreement": (with_(agreement={ENCODER: (torch.nan,)}), "agreement of encoder: expected finite numbers"),
    "long agreement": (with_(agreement={ENCODER: (1.0,) * 9}), "expected as many numbers as the learned weights"),
    "foreign scores": (with_(metrics={"depth": {"rmse": 1.0}}), "metrics: expected those of edge"),
    "many scores": (with_(metrics={"edge": dict.fromkeys(["ods_f", *map(str, range(99))], 0.0)}), "at most 31 more"),
    "no headline": (with_(metrics={"edge": {}}), "metrics of edge: expected ods_f"),
    "endless seconds": (with_(seconds=10**400), "seconds: expected 0 to 1e+09"),
    "endless round": (with_(round=torch.inf), "round: expected 1, got inf"),
    "huge loss": (with_(losses={"edge": 10**400}), "losses: expected numbers for edge"),
    "failed": (with_(rows={}, failed="the loss became nan"), "failed: the loss became nan"),
}


def outcome(replies, **bounds):
    """What clients get in a second round, the learned weights, and who was refused, with the reason."""
    state, deliveries, record = second_round(replies, **bounds)
    rows = {
        (client, str(slot), i): (addend.row.tolist(), addend.scale)
        for client, slots in deliveries.items()
        for slot, delivery in slots.items()
        for i, addend in enumerate(delivery.addends)
    }
    return rows, state.weights, record.refused


@pytest.mark.parametrize(("spoil", "reason"), FAULTS.values(), ids=FAULTS)
def test_a_bad_reply_is_refused_with_its_reason(spoil, reason):
    """The others get what they would without it."""
    good, bad = [*map(reply, "abc")], spoil(reply("d"))
    *found, refused = outcome([bad, *good])
    assert reason in refused[bad.client]
    assert found == [*outcome(good)[:2]]


SAID = {
    "losses": {"losses": {"edge": 1e38}},
    "scores": {"metrics": {"edge": {"ods_f": -1e38, "another": 1e38}}},
    "seconds": {"seconds": 1e9},
    "agreement": {"agreement": {ENCODER: (1e38,), EDGE: (-1e38, 1e38)}},
    "declined": {"declined": "everything"},
    "effect": {"effect": Effect(1e38, -1e38, 1e9)},
}


@pytest.mark.parametrize("said", SAID.values(), ids=SAID)
def test_what_a_client_says_of_its_training_changes_nothing_for_others(said):
    honest, false = (outcome([*map(reply, "abc"), each])[:2] for each in (reply("d"), replace(reply("d"), **said)))
    for found, expected in zip(false, honest, strict=True):
        others = [key for key in expected if (key[0] if isinstance(key, tuple) else key.client) != "d"]
        assert others
        assert all(found[key] == expected[key] for key in others)


def test_of_two_replies_the_first_counts_and_the_record_names_the_other():
    good, again = [*map(reply, "abcd")], reply("d", scale=2.0)
    *found, refused = outcome([*good, again])
    assert found == [*outcome(good)[:2]]
    assert refused == {"d (again)": "expected one reply of a client in a round, got another"}
    bad = with_row(torch.full((6,), torch.nan))(reply("d"))
    assert outcome([*good[:3], bad, reply("d")])[0] == outcome(good[:3])[0]


@pytest.mark.parametrize(
    ("first", "second", "bounds", "reason"),
    [
        (0.02, 1.0, {}, "at most 10 times as far as in recent rounds"),
        (1.0, 5.0, {}, None),  # others that move less do not matter
        (1e-6, 1.0, {}, None),  # there was nothing to learn from
        (1.0, 1e9, {"reach": 0, "jump": 0}, None),
    ],
)
def test_a_jump_against_its_own_past_is_refused(first, second, bounds, reason):
    own = guard(**bounds)
    state, _, _ = own.step(ServerState(), [reply(name, 0, scale=first) for name in NAMES])
    refused = own.step(state, [*map(reply, "abc"), reply("d", scale=second)])[2].refused
    assert (reason in refused["d"]) if reason else not refused


def test_the_state_keeps_as_many_moves_as_its_window():
    own, state = guard(window=2), ServerState()
    for round in range(4):
        state, _, _ = own.step(state, [reply(name, round) for name in NAMES])
    assert {len(shares) for shares in state.shares.values()} == {2}


def test_a_warm_up_that_ends_early_for_one_client_is_no_fault():
    """The papers' NYUD client has four epochs per round: in round 2 it moves hundreds of times as far as the others."""
    training, epochs, state = Training(schedule=Schedule()), {"a": 1, "b": 1, "c": 1, "d": 4}, ServerState()
    own = Guard(Server(resolve("fedhca2"), PROFILES), reach=Reach(training, Privacy(), rounds=100, epochs=epochs))
    for round in range(8):
        rates = {
            name: sum(training.schedule.rate(e, 100 * n, 1e-4) for e in range(round * n, (round + 1) * n))
            for name, n in epochs.items()
        }
        state, _, record = own.step(state, [reply(name, round, scale=0.5 * rates[name]) for name in NAMES])
        assert not record.refused


def refused_by_size(images, **declared):
    """Who is refused if all clients take honest steps, in which no value moves by more than the learning rate."""
    names, batch = "abcdef"[: len(images)], STEADY.batch_size
    profiles = [replace(PROFILES[0], client=name, samples=count) for name, count in zip(names, images, strict=True)]
    reach = Reach(STEADY, Privacy(), rounds=10, epochs=dict.fromkeys(names, 1), images=declared)
    own = Guard(Server(resolve("fedper"), profiles), reach=reach)
    rows = [Reply(each.client, 0, {ENCODER: torch.full((6,), 1.0 * (each.samples // batch))}) for each in profiles]
    return set(own.step(ServerState(), rows)[2].refused)


@pytest.mark.parametrize(
    ("images", "declared", "refused"),
    [
        *((sizes, {}, set()) for sizes in ((10, 10, 10), (80, 90, 100, 1500), (8, 8, 120), (10, *[10_000] * 3))),
        ((10, 10, 10, 10_000), {}, {"d"}),
        ((10, 10, 10, 10_000), {"d": 10_000}, set()),
    ],
)
def test_clients_are_believed_within_what_is_usual_or_declared(images, declared, refused):
    assert refused_by_size(images, **declared) == refused


def test_a_declared_number_of_images_is_the_most_that_counts():
    reach = replace(REACH, images={"d": 800})
    claims = [replace(PROFILES[3], samples=samples) for samples in (80, 800, 10**9)]
    assert [reach.steps(claim, median=8) for claim in claims] == [10, 100, 100]


VALUES = 400
WIDE = Layout(("a.weight",), ((VALUES,),))
SLOW = Training(learning_rate=1e-3, schedule=Schedule(warmup_epochs=0, lowest=1e-3, lag=False))
REACHED = 10 * 1.05 * 7.27 * 1e-3 * VALUES**0.5  # in a round of ten steps
START = torch.randn(VALUES, generator=torch.Generator().manual_seed(7))


def federation(method, names="abcd", privacy=None, guard=None, slots=(ENCODER, EDGE)):
    profiles = [Profile(name, "outdoor", ("edge",), 80, dict.fromkeys(slots, WIDE)) for name in names]
    reach = Reach(SLOW, privacy or Privacy(), rounds=10, epochs=dict.fromkeys(names, 1))
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
    reach = Reach(SLOW, Privacy(), rounds=1, epochs={"a": 1})
    profile = Profile("a", "outdoor", ("edge",), SLOW.batch_size * len(steps), {})
    assert abs(float(value.detach())) <= reach.of_row(profile, "encoder", 1, range(1), profile.samples).within(1.0)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
deep = st.sampled_from([json.loads("[" * depth + "]" * depth) for depth in (7, 900)])
steering = st.sampled_from(["\x1b[31m", "[/red]", "\ud800", "\u202e", "\0", "\r\n", 10**400])
anything = anything | deep | steering
slots = st.sampled_from([ENCODER, EDGE, HEAD, Slot("decoder", "nothing")])
numbers = st.floats(width=32) | st.sampled_from([1e38, -1e38, 1e-45])
tensors = st.lists(numbers, max_size=8).map(lambda values: torch.tensor(values, dtype=torch.float32))
exact = st.lists(numbers, min_size=6, max_size=6).map(lambda values: torch.tensor(values, dtype=torch.float32))
types = st.sampled_from([torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.bool, torch.complex64])
odd_rows = (
    exact | tensors | anything | st.builds(lambda row, kind: row.to(kind), exact, types)
    | exact.map(lambda row: row.view(2, 3)) | st.just(torch.empty(6, device="meta"))
)  # fmt: skip
FIELDS = {
    "client": st.sampled_from([*NAMES, "", "eve"]) | anything,
    "round": st.integers(-2, 3) | anything,
    "rows": st.dictionaries(slots, odd_rows, max_size=3) | anything,
    "agreement": st.dictionaries(slots, st.lists(st.floats(), max_size=3).map(tuple) | anything, max_size=2) | anything,
    "losses": st.dictionaries(st.sampled_from(["edge", "sal"]), st.floats() | anything, max_size=2) | anything,
    "metrics": st.dictionaries(st.sampled_from(["edge"]), anything, max_size=1) | anything,
    "seconds": st.floats() | anything,
    "failed": st.text(max_size=5) | anything,
}


@st.composite
def mutated(draw):
    changed = draw(st.lists(st.sampled_from(sorted(FIELDS)), min_size=1, max_size=3, unique=True))
    good = reply("d")
    if draw(st.booleans()) and "rows" in changed:
        rows = {slot: draw(odd_rows) for slot in good.rows}
        return replace(good, rows=rows)
    return replace(good, **{name: draw(FIELDS[name]) for name in changed})


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(bad=mutated() | anything)
def test_no_reply_whatsoever_stops_the_server(bad):
    _, deliveries, record = second_round([*map(reply, "abc"), bad])
    assert {"a", "b", "c"} <= set(deliveries)
    assert "d" in deliveries or record.refused
    assert all(plain(why) == why for why in record.refused.values())
    rows = [addend.row for each in deliveries.values() for delivery in each.values() for addend in delivery.addends]
    assert all(row.isfinite().all() for row in rows)
