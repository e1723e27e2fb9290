"""Answers from the top down: what does not fit is refused before it is assembled, and nothing stops the server."""

import json
import math
import time

import pytest
import torch
from hostile import ATTACKS, ATTACKS_IN_PROFILES, Letter, letter_of, made, name_of, record_of
from hypothesis import given, settings
from hypothesis import strategies as st

from fedhca2.federation.flower.answers import (
    MAX_CHUNK_BYTES,
    Allowance,
    Answers,
    Arrival,
    GoneError,
    NotYetError,
    SiteAnswer,
)
from fedhca2.federation.flower.records import decode_profile, decode_reply, encode_reply, pack, profile_as_data
from fedhca2.federation.gate import Expected, UnusableError, attempt, check_reply, plain
from fedhca2.messages import Profile, Reply
from fedhca2.params import Layout, Slot

NODE = 5
ENCODER = Slot("encoder")
LAYOUTS = {ENCODER: Layout(("a.weight",), ((700, 2000),)), Slot("head", "depth"): Layout(("b.weight",), ((3,),))}
VALUES = LAYOUTS[ENCODER].numel  # two chunks
PROFILE = Profile("home", "indoor", ("depth",), 7, LAYOUTS)
EXPECTED = Expected(3, {"home": PROFILE}, {"home": {"encoder"}}, {})
REPLY = Reply("home", 3, {ENCODER: torch.arange(VALUES).float()}, {}, {"depth": 0.3}, {"depth": {"rmse": 0.7}}, 1.5)
GOOD_REPLY, GOOD_PROFILE = Letter.of(encode_reply(REPLY, "float32")), Letter.of(pack(profile_as_data(PROFILE)))


class Shelf:
    """Objects as on a SuperLink, some of which have not arrived."""

    def __init__(self, objects, late=()):
        message = made("Message", b"", objects[-1])
        self.objects = {name_of(content): content for content in [*objects, message]}
        self.root, self.late, self.pulled, self.dropped = name_of(message), set(late), [], []

    def find(self, message):
        return Arrival(NODE, self.root)

    def pull(self, name):
        self.pulled.append(name)
        if name in self.late:
            raise NotYetError
        if name not in self.objects:
            raise GoneError("its answer was never completed")
        return self.objects[name]

    def release(self, message, arrival):
        self.dropped += [message, *([arrival.object] if arrival else [])]
        return arrival is not None


def take(source, node=NODE, values=VALUES, until=math.inf):
    answers = source if isinstance(source, Answers) else Answers(source)
    return answers.take("order", node, Allowance(values), until)


def outcome(answer, read):
    """What is read in an answer, or why it is refused."""
    found = attempt(read, answer) if isinstance(answer, SiteAnswer) else answer
    return found.why if isinstance(found, UnusableError) else found


def reply_or_reason(objects):
    def read(answer):
        reply = decode_reply(answer.header, answer.rows, PROFILE)
        check_reply(reply, EXPECTED)
        return reply

    return outcome(take(Shelf(objects)), read)


def profile_or_reason(objects):
    return outcome(take(Shelf(objects), values=0), lambda answer: decode_profile(answer.header, PROFILE))


def test_a_good_answer_arrives_as_it_was_sent():
    assert torch.equal(reply_or_reason(GOOD_REPLY.sent()).rows[ENCODER], REPLY.rows[ENCODER])
    assert profile_or_reason(GOOD_PROFILE.sent()) == PROFILE


# `test_hostile_sites.py` plays all attacks in replies.
@pytest.mark.parametrize("attack", ATTACKS_IN_PROFILES)
def test_a_hostile_profile_is_refused_for_a_plain_reason(attack):
    found = profile_or_reason(ATTACKS_IN_PROFILES[attack](GOOD_PROFILE))
    assert isinstance(found, str)
    assert found == plain(found)


@pytest.mark.parametrize("attack", [name for name in ATTACKS if "5 GB" in name])
def test_no_chunk_of_an_array_that_does_not_fit_is_pulled(attack):
    shelf = Shelf(ATTACKS[attack](GOOD_REPLY))
    take(shelf)
    assert name_of(made("ArrayChunk", bytes(MAX_CHUNK_BYTES))) not in shelf.pulled
    assert profile_or_reason(GOOD_REPLY.sent()).startswith("array: expected none")


def test_an_answer_of_another_node_is_refused_and_a_missing_object_means_that_the_site_went_away():
    objects = GOOD_REPLY.sent()
    shelf = Shelf(objects)
    assert "another's" in take(shelf, node=6).why
    del shelf.objects[name_of(objects[1])]
    assert isinstance(take(shelf), GoneError)


def test_an_answer_is_taken_once_its_last_object_has_arrived():
    objects = GOOD_REPLY.sent()
    shelf = Shelf(objects, late={name_of(objects[1])})
    answers = Answers(shelf)
    assert take(shelf, until=time.monotonic()) is None
    assert not shelf.pulled  # after its deadline
    assert take(answers) is None
    before = len(shelf.pulled)
    assert take(answers) is None
    assert shelf.pulled[before:] == [name_of(objects[1])]
    shelf.late.clear()
    assert isinstance(take(answers), SiteAnswer)


@pytest.mark.parametrize("objects", [GOOD_REPLY.sent(), ATTACKS["a header that is no JSON"](GOOD_REPLY)])
def test_the_superlink_drops_answers_that_were_taken_or_refused(objects):
    shelf = Shelf(objects)
    take(shelf)
    assert shelf.dropped == ["order", shelf.root]


bodies = st.binary(max_size=40) | st.text(max_size=20).map(str.encode) | st.sampled_from([b"{}", b"[]", b"null", b"\0"])
kinds = st.sampled_from(
    ["Message", "RecordDict", "ConfigRecord", "ArrayRecord", "Array", "ArrayChunk", "", "os.system"]
)


@pytest.mark.slow
@settings(max_examples=300, deadline=2000)
@given(st.data())
def test_no_objects_whatsoever_stop_the_server(data):
    shelf = Shelf(Letter(GOOD_REPLY.header, bytes(32)).sent())
    name = data.draw(st.sampled_from(sorted(shelf.objects)))
    content = shelf.objects[name]
    start, end = sorted((data.draw(st.integers(0, 200)), data.draw(st.integers(0, 200))))
    spoilt = st.sampled_from([content[:end], content[:start] + data.draw(bodies) + content[end:]])
    own = st.builds(lambda kind, body: made(kind, body, *shelf.objects.values()), kinds, bodies)
    shelf.objects[name] = data.draw(spoilt | own | bodies)
    assert isinstance(take(shelf, values=8), SiteAnswer | UnusableError)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.just(10**400) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.slow
@pytest.mark.parametrize("read", [reply_or_reason, profile_or_reason])
@settings(max_examples=300, deadline=2000)
@given(st.data())
def test_no_header_whatsoever_stops_the_server(read, data):
    good = {reply_or_reason: GOOD_REPLY, profile_or_reason: GOOD_PROFILE}[read].header
    changes = data.draw(st.dictionaries(st.sampled_from([*good, "cannot"]), values, max_size=4))
    found = read(letter_of(record_of(json.dumps(good | changes))))
    assert isinstance(found, Reply | Profile) or found == plain(found)
