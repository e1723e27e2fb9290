"""What the proxy forwards to a SuperLink: nothing that a site must not send, however it is disguised."""

import pytest
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.proto.fleet_pb2 import ActivateNodeRequest, PullMessagesRequest, PushMessagesRequest
from flwr.proto.message_pb2 import Message, Metadata, ObjectTree, PushObjectRequest
from flwr.proto.node_pb2 import Node
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from fedhca2.federation.flower.proxy.app import Refusals
from fedhca2.federation.flower.proxy.requests import (
    DEPTH,
    INLINE,
    OBJECTS,
    PUSHES,
    Allowance,
    Shapes,
    fault_of,
    fault_of_tree,
)

NODE, KEY = 7, b"key"
names = st.integers(0, 15).map(lambda n: f"{n:064x}")


def tree_of(name, *children):
    return ObjectTree(object_id=f"{name:064x}", children=children)


def reply_of(tree=None):
    """A reply as a SuperNode announces it."""
    tree = tree or tree_of(0, tree_of(1, tree_of(2), tree_of(3, tree_of(4, *map(tree_of, range(5, 30))))))
    about = Metadata(
        run_id=1,
        message_id=tree.object_id,
        src_node_id=NODE,
        dst_node_id=SUPERLINK_NODE_ID,
        reply_to_message_id=f"{99:064x}",
    )
    return PushMessagesRequest(
        node=Node(node_id=NODE), messages_list=[Message(metadata=about)], message_object_trees=[tree]
    )


def levels(tree):
    return 1 + max(map(levels, tree.children), default=0)


def objects(tree):
    return [tree.object_id, *(name for child in tree.children for name in objects(child))]


def assert_harmless(request):
    """Assert that the SuperLink may get it: this node's own reply, in a tree that is quick to traverse."""
    assert request.node.node_id == NODE
    [message], [tree] = request.messages_list, request.message_object_trees
    about = message.metadata
    assert (about.src_node_id, about.dst_node_id) == (NODE, SUPERLINK_NODE_ID)
    assert len(about.reply_to_message_id) == 64
    assert message.content.ByteSize() <= INLINE
    assert levels(tree) <= DEPTH
    assert len(set(objects(tree))) == len(objects(tree)) <= OBJECTS
    assert about.message_id == tree.object_id


def test_a_reply_passes():
    assert fault_of(reply_of(), NODE, KEY) == ""


numbers = st.sampled_from([0, 1, NODE, 8, 2**64 - 1])
texts = st.one_of(names, st.sampled_from(["", "x", "G" * 64, "0" * 63]), st.text(max_size=3))
trees = st.recursive(
    st.builds(ObjectTree, object_id=texts),
    lambda below: st.builds(ObjectTree, object_id=texts, children=st.lists(below, max_size=4)),
    max_leaves=20,
)


def claim(field, values):
    """Change the message's metadata."""
    return values.map(lambda value: lambda request: setattr(request.messages_list[0].metadata, field, value))


def other_tree(tree):
    def change(request):
        request.message_object_trees[0].CopyFrom(tree)
        request.messages_list[0].metadata.message_id = tree.object_id

    return change


changes = st.one_of(
    claim("src_node_id", numbers),
    claim("dst_node_id", numbers),
    claim("reply_to_message_id", texts),
    claim("message_id", texts),
    numbers.map(lambda node: lambda request: setattr(request.node, "node_id", node)),
    trees.map(other_tree),
    st.just(lambda request: request.messages_list.append(request.messages_list[0])),
    st.just(lambda request: request.message_object_trees.append(request.message_object_trees[0])),
    st.integers(0, 2 * INLINE).map(
        lambda size: lambda request: request.messages_list[0].content.items.add(key="k" * size)
    ),
)


@settings(max_examples=400, deadline=None)
@given(st.lists(changes, min_size=1, max_size=2))
def test_whatever_is_said_in_a_message_what_passes_is_harmless(made):
    request = reply_of()
    for change in made:
        change(request)
    if not fault_of(request, NODE, KEY):
        assert_harmless(request)


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_whatever_bytes_are_changed_what_passes_is_harmless(data):
    body = bytearray(reply_of().SerializeToString())
    for place in data.draw(st.lists(st.integers(0, len(body) - 1), min_size=1, max_size=8)):
        body[place] = data.draw(st.integers(0, 255))
    request = PushMessagesRequest()
    try:
        request.ParseFromString(bytes(body))
    except DecodeError:
        return
    if not fault_of(request, NODE, KEY):
        assert_harmless(request)


@pytest.mark.parametrize(
    "request_",
    [
        PullMessagesRequest(node=Node(node_id=8)),
        PullMessagesRequest(),
        ActivateNodeRequest(public_key=b"another"),
        PushObjectRequest(node=Node(node_id=NODE), object_id="x"),
    ],
    ids=["another node", "no node", "another key", "no session"],
)
def test_a_request_in_anothers_name_is_refused(request_):
    assert fault_of(request_, NODE, KEY)


def test_a_wide_tree_of_nothing_is_refused_before_it_is_followed():
    tree = tree_of(0)
    tree.children.extend([ObjectTree()] * 200_000)
    assert "objects" in fault_of_tree(tree)


def chain_of(depth):
    tree = tree_of(0)
    for level in range(1, depth):
        tree = tree_of(level, tree)
    return tree


def test_the_deepest_tree_passes_and_one_more_is_refused():
    assert fault_of_tree(chain_of(DEPTH)) == ""
    assert "deep" in fault_of_tree(chain_of(DEPTH + 1))


def test_the_largest_tree_passes():
    assert fault_of_tree(tree_of(0, *map(tree_of, range(1, OBJECTS)))) == ""


shapes_of = st.recursive(
    st.builds(ObjectTree, object_id=names),
    lambda below: st.builds(ObjectTree, object_id=names, children=st.lists(below, min_size=1, max_size=3)),
    max_leaves=6,
)


@settings(max_examples=200, deadline=None)
@given(st.lists(shapes_of, max_size=12))
def test_trees_do_not_grow_together(announced):
    """A SuperLink keeps the first children of every object; the trees it assembles are the ones that were sent."""
    shapes, kept = Shapes(), {}
    for tree in announced:
        if fault_of_tree(tree) or shapes.fault_of(tree):
            continue
        waiting = [tree]
        while waiting:
            one = waiting.pop()
            kept.setdefault(one.object_id, [child.object_id for child in one.children])
            waiting += one.children

        def follow(name, seen=()):
            return [name, *(below for child in kept[name] for below in follow(child))]

        assert len(follow(tree.object_id)) <= len(objects(tree))


def test_a_reply_that_is_sent_again_has_the_same_shape():
    shapes = Shapes()
    tree = reply_of().message_object_trees[0]
    assert shapes.fault_of(tree) == shapes.fault_of(tree) == ""


def test_what_was_refused_is_not_remembered():
    shapes = Shapes()
    shapes.fault_of(tree_of(0, tree_of(1)))
    assert shapes.fault_of(tree_of(2, tree_of(3, tree_of(4)), tree_of(0)))
    assert shapes.fault_of(tree_of(3, tree_of(5))) == ""


def test_shapes_are_forgotten_in_time():
    shapes = Shapes(kept=10)
    for number in range(0, 100, 2):
        shapes.fault_of(tree_of(number, tree_of(number + 1)))
    refused = [bool(shapes.fault_of(tree_of(number, tree_of(1000)))) for number in (80, 98, 0)]
    assert refused == [True, True, False]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 60), st.booleans(), st.sampled_from(["keep", "back", "renew"])), max_size=40))
def test_a_node_never_has_more_than_its_quota(requests):
    allowance, kept, pushes = Allowance(100), 0, 0
    for size, announces, after in requests:
        if not allowance.take(size, announces):
            kept, pushes = kept + size, pushes + announces
            if after == "back":
                allowance.give_back(size, announces)
                kept, pushes = kept - size, pushes - announces
        if after == "renew":
            allowance.renew()
            kept = pushes = 0
        assert kept <= 100
        assert pushes <= PUSHES


def test_many_refusals_of_a_kind_are_one_line(caplog):
    refusals = Refusals()
    for number in range(1000):
        refusals.tell("home (node 7)", "POST /x", f"node should be 7, found {number}")
    assert len(caplog.records) == 1
