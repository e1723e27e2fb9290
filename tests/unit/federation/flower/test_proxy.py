"""What the proxy forwards to a SuperLink: nothing that a site must not send, however it is disguised."""

import logging
from contextlib import suppress

import pytest
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import Message, Metadata, ObjectTree
from flwr.proto.node_pb2 import Node, NodeInfo
from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from fedhca2.federation.flower.deploy.proxy_checks import (
    MAX_DEPTH,
    MAX_INLINE_BYTES,
    MAX_OBJECTS,
    KnownObjects,
    Quota,
    RateLimitFilter,
    Refusal,
    check_request,
    check_tree,
)

NODE = 7
SITE = NodeInfo(node_id=NODE, name="home", public_key=b"key")
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
    assert message.content.ByteSize() <= MAX_INLINE_BYTES
    assert levels(tree) <= MAX_DEPTH
    assert len(set(objects(tree))) == len(objects(tree)) <= MAX_OBJECTS
    assert about.message_id == tree.object_id


def is_refused(request):
    try:
        check_request(request, SITE)
    except Refusal:
        return True
    return False


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
    st.integers(0, 2 * MAX_INLINE_BYTES).map(
        lambda size: lambda request: request.messages_list[0].content.items.add(key="k" * size)
    ),
)


@settings(max_examples=400, deadline=None)
@given(st.lists(changes, min_size=1, max_size=2))
def test_whatever_is_said_in_a_message_what_passes_is_harmless(made):
    request = reply_of()
    for change in made:
        change(request)
    if not is_refused(request):
        assert_harmless(request)


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_whatever_bytes_are_changed_what_passes_is_harmless(data):
    body = bytearray(reply_of().SerializeToString())
    for index in data.draw(st.lists(st.integers(0, len(body) - 1), min_size=1, max_size=8)):
        body[index] = data.draw(st.integers(0, 255))
    request = PushMessagesRequest()
    try:
        request.ParseFromString(bytes(body))
    except DecodeError:
        return
    if not is_refused(request):
        assert_harmless(request)


def test_a_wide_tree_of_nothing_is_refused_before_it_is_followed():
    tree = tree_of(0)
    tree.children.extend([ObjectTree()] * 200_000)
    with pytest.raises(Refusal, match="objects"):
        check_tree(tree)


def test_a_reply_with_the_deepest_tree_and_the_largest_tree_pass():
    check_request(reply_of(), SITE)
    assert levels(reply_of().message_object_trees[0]) == MAX_DEPTH
    check_tree(tree_of(0, *map(tree_of, range(1, MAX_OBJECTS))))


trees_of = st.recursive(
    st.builds(ObjectTree, object_id=names),
    lambda below: st.builds(ObjectTree, object_id=names, children=st.lists(below, min_size=1, max_size=3)),
    max_leaves=6,
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["order", 1, 2]), trees_of), max_size=12))
def test_whatever_is_announced_a_superlink_can_release_all_of_it(announced):
    objects_, store, roots = KnownObjects(), InMemoryObjectStore(), set()
    for sender, tree in announced:
        if sender == "order" and any(name in store for name in objects(tree)):
            continue  # the server's own objects are new
        try:
            check_tree(tree)
            if sender == "order":
                objects_.note(1, tree, is_answer=False)
            else:
                objects_.claim(sender, tree)
        except Refusal:
            continue
        store.preregister(1, tree)
        roots.add(tree.object_id)
        assert objects(store.get_object_tree(tree.object_id)) == objects(tree)
    for root in roots:
        store.delete(root)
    assert len(store) == 0


def test_an_answer_is_remembered_once_until_it_is_released():
    objects_, tree = KnownObjects(), tree_of(0, tree_of(1))
    assert [objects_.claim(NODE, tree), objects_.claim(NODE, tree)] == [True, False]
    objects_.release(NODE, tree)  # the SuperLink did not accept it, so another may announce it
    assert objects_.claim(8, tree_of(2, tree_of(1)))


def test_the_objects_of_old_answers_are_forgotten():
    objects_ = KnownObjects(max_trees=8)
    for number in range(0, 32, 2):
        objects_.claim(NODE, tree_of(number, tree_of(number + 1)))
    assert objects_.claim(8, tree_of(100, tree_of(1)))
    with pytest.raises(Refusal, match="new"):
        objects_.claim(8, tree_of(101, tree_of(31)))


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 60), st.booleans(), st.sampled_from(["keep", "back", "renew"])), max_size=40))
def test_a_node_never_has_more_than_its_quota(requests):
    quota, sent, pushes = Quota(100, max_pushes=8), 0, 0
    for size, announces, after in requests:
        with suppress(Refusal):
            quota.take(size, announces)
            sent, pushes = sent + size, pushes + announces
            if after == "back":
                quota.give_back(size, announces)
                sent, pushes = sent - size, pushes - announces
        if after == "renew":
            quota.renew()
            sent = pushes = 0
        assert sent <= 100
        assert pushes <= 8


def test_many_records_of_a_kind_are_one_line(caplog):
    log = logging.getLogger("test.seldom")
    log.addFilter(RateLimitFilter())
    for number in range(1000):
        log.warning("refused %s: %s", "home", number, extra={"kind": f"home: expected 7, got {number}"})
        log.warning("Unsupported upgrade request.")
    assert len(caplog.records) == 2
