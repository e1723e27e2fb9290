from dataclasses import replace

import pytest
import torch
from PIL import Image
from torch.testing import assert_close

from fedhca2.federation.guard import Guard
from fedhca2.federation.in_process import InProcess
from fedhca2.federation.rounds import run_rounds
from fedhca2.federation.server import Server, check_method
from fedhca2.messages import Profile, Reply
from fedhca2.methods import resolve
from fedhca2.params import Layout, Slot
from fedhca2.run_folder.records import SlotKey, Watcher
from small import clients, small
from tiny_encoder import TINY

ENCODER, EDGE = Slot("encoder"), Slot("decoder", "edge")
LAYOUT = Layout(("a.weight", "b.weight"), ((2, 2), (2, 1)))
PROFILES = [Profile(name, "outdoor", ("edge",), 1, {ENCODER: LAYOUT, EDGE: LAYOUT}) for name in ("a", "b", "c")]


def reply(client, round=0, agreement=None, seed=0):
    rng = torch.Generator().manual_seed(100 * seed + ord(client))
    rows = {ENCODER: torch.randn(6, generator=rng), EDGE: torch.randn(6, generator=rng)}
    return Reply(client, round, rows, agreement or {})


def all_replies(round=0, agreement=None):
    return [reply(profile.client, round, agreement) for profile in PROFILES]


def first_round(settings=None):
    server = Server(resolve("fedhca2", settings), PROFILES)
    return server, *server.step(server.start(), all_replies())


def test_the_shared_update_is_one_object_for_all_that_is_remembered_if_weights_are_learned():
    for learn in (True, False):
        _, _, deliveries, _ = first_round({"learn": learn})
        (addends,) = zip(*(deliveries[client][ENCODER].addends for client in "abc"), strict=True)
        assert (len({id(addend.row) for addend in addends}), {addend.remember for addend in addends}) == (1, {learn})


def test_an_absent_client_keeps_its_weights():
    server, state, _, _ = first_round()
    after, deliveries, _ = server.step(state, all_replies(1, {ENCODER: (2.0,)})[1:])
    unchanged = [after.weights[SlotKey(client, ENCODER)] == state.weights[SlotKey(client, ENCODER)] for client in "ab"]
    assert (unchanged, sorted(deliveries)) == ([True, False], ["b", "c"])
    after, deliveries, _ = server.step(state, [])
    assert (after.round, after.weights, deliveries) == (2, state.weights, {})


def test_the_record_names_members_and_products():
    """Decoders of a client with several tasks are members of their own."""
    tasks = ("sal", "edge")
    layouts = {ENCODER: LAYOUT, EDGE: LAYOUT, Slot("decoder", "sal"): LAYOUT}
    server = Server(resolve("fedhca2"), [Profile("m", "outdoor", tasks, 1, layouts), *PROFILES])
    many = Reply("m", 0, {slot: torch.zeros(6) for slot in layouts})
    encoder, decoder = server.step(server.start(), [many, *all_replies()])[2].aggregations
    rows = torch.stack([*(reply(client).rows[ENCODER] for client in "abc"), torch.zeros(6)]).double()
    assert (encoder.members, decoder.members) == (
        ("a", "b", "c", "m"),
        ("a/edge", "b/edge", "c/edge", "m/edge", "m/sal"),
    )
    assert_close(encoder.products, rows @ rows.T)


def test_the_record_names_clients_whose_updates_came_and_were_refused():
    server = Server(resolve("fedhca2"), PROFILES)
    silent = Reply("b", 0, failed="the loss is not a number")
    _, _, record = Guard(server).step(server.start(), [replace(reply("a"), failed=torch.ones(2)), silent, reply("c")])
    assert set(record.refused) == {"a", "b"}
    assert record.unused == ("a",)


def step_of_long_rows(method, sketch, round=0):
    """What a server sends and records for eight clients whose encoders have 50,000 values."""
    rng = torch.Generator().manual_seed(0)
    profiles = [Profile(c, "outdoor", ("edge",), 1, {ENCODER: Layout(("w",), ((50_000,),))}) for c in "abcdefgh"]
    rows = 0.3 * torch.randn(50_000, generator=rng) + torch.randn(8, 50_000, generator=rng)
    server = Server(resolve(method, {"encoder": {"sketch": sketch}}), profiles)
    replies = [Reply(p.client, round, {ENCODER: row}, {}) for p, row in zip(profiles, rows, strict=True)]
    _, deliveries, record = server.step(replace(server.start(), round=round), replies)
    return deliveries["a"][ENCODER].addends[0].row, record.aggregations[0].products


@pytest.mark.parametrize("method", ["fedhca2", "cagrad", "mgda"])
def test_an_update_from_sketches_is_near_the_exact_one(method):
    exact, sketched = (step_of_long_rows(method, sketch)[0] for sketch in (None, 16384))
    assert 0 < (sketched - exact).norm() < 0.05 * exact.norm()


def test_every_round_has_its_own_sketches():
    assert not torch.equal(*(step_of_long_rows("fedhca2", 1024, round)[0] for round in (0, 1)))


@pytest.mark.parametrize("method", ["krum", "geometric_median", "norm_clipping"])
def test_robust_methods_judge_whole_rows(method):
    with pytest.raises(ValueError, match=r"encoder\.sketch: expected null, since a hostile update can hide"):
        resolve(method, {"sketch": 1024})


HEAD, CLASSES = Slot("head", "edge"), Layout(("weight",), ((2, 3),))
MEAN_OF_HEADS = {"head": {"kind": "mean"}}


def heads(classes, settings=MEAN_OF_HEADS, datasets="xxx"):
    """The server of clients whose heads have these classes, and what it delivers."""
    profiles = [
        Profile(name, dataset, ("edge",), 1, {ENCODER: LAYOUT, HEAD: CLASSES}, classes={"edge": own} if own else {})
        for name, dataset, own in zip("abc", datasets, classes, strict=True)
    ]
    server = Server(resolve("fedavg", settings), profiles)
    whole = {name: reply(name).rows | {HEAD: torch.full((6,), float(ord(name)))} for name in "abc"}
    sent = {
        name: {slot: rows[slot] for slot in (ENCODER, HEAD) if slot.part in server.uploads(name, 0)}
        for name, rows in whole.items()
    }
    _, deliveries, _ = server.step(server.start(), [Reply(name, 0, rows) for name, rows in sent.items()])
    return server, deliveries


def test_heads_are_mixed_only_with_those_of_the_same_classes():
    server, deliveries = heads(["cats", "cats", "dogs"])
    assert_close(deliveries["a"][HEAD].addends[0].row, torch.full((6,), (ord("a") + ord("b")) / 2))
    assert all(ENCODER in deliveries[name] for name in "abc")
    for each in (server, heads(["", "", "dogs"])[0]):  # without names, neither
        assert "head" not in each.uploads("c", 0)


@pytest.mark.parametrize(
    ("classes", "settings", "datasets", "lines"),
    [
        (["cats", "cats", "dogs"], MEAN_OF_HEADS, "xxx", 1),
        (["cats", "cats", "cats"], MEAN_OF_HEADS, "xxx", 0),
        (["cats", "cats", "dogs"], {"head": {"kind": "group_mean"}}, "xxx", 1),
        (["cats", "cats", "dogs"], {"head": {"kind": "group_mean"}}, "xxy", 0),  # never mixed
        (["cats", "cats", "dogs"], {}, "xxx", 0),
    ],
)
def test_clients_whose_heads_are_not_mixed_because_of_their_classes_are_named(
    caplog, classes, settings, datasets, lines
):
    server = heads(classes, settings, datasets)[0]
    check_method(server.method, server.profiles)
    found = [record.message for record in caplog.records if "classes" in record.message]
    assert len(found) == lines
    assert all("a/edge and c/edge" in line for line in found)


def shop(folder, brands):
    """A folder with ten images of two brands, as settings of a data set."""
    folder.mkdir()
    lines = ["image,brand"]
    for number in range(10):
        Image.new("RGB", (32, 32), (25 * number, 0, 0)).save(folder / f"{number}.png")
        lines.append(f"{number}.png,{brands[number % 2]}")
    (folder / "labels.csv").write_text("\n".join(lines))
    return {"kind": "csv", "root": str(folder), "size": [32, 32], "columns": {"classification": "brand"}}


@pytest.mark.parametrize("south", [["milk", "tea"], ["bread", "milk"]])
def test_heads_of_the_same_classes_are_averaged_and_the_log_names_others(tmp_path, caplog, south):
    shops = {"north": shop(tmp_path / "north", ["tea", "milk"]), "south": shop(tmp_path / "south", south)}
    experiment = small(
        method={"name": "fedavg", "head": {"kind": "mean"}},
        model={"encoder": {"name": TINY}, "decoder_width": 8},
        data=shops,
        clients=[{"name": name, "data": name, "tasks": ["classification"]} for name in shops],
    )
    fleet = InProcess(list(clients(experiment).values()))
    check_method(experiment.resolved_method, fleet.profiles)
    run_rounds(Server(experiment.resolved_method, fleet.profiles.values()), fleet, 1, 0, Watcher())
    one, other = (client.personal.model.state_dict() for client in fleet.store.clients.values())
    unlike = {name.split(".")[0] for name, value in one.items() if "norm" not in name and not value.equal(other[name])}
    warnings = [record.message for record in caplog.records if "classes" in record.message]
    if "tea" in south:
        assert (unlike, warnings) == (set(), [])
    else:
        assert unlike == {"heads"}
        assert "north/classification and south/classification" in warnings[0]
