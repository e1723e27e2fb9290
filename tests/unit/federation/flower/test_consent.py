"""What a site learns, what it allows a server to ask for, and what it keeps to itself."""

from pathlib import Path

import pytest
import torch
import yaml

from fedhca2.configs import built_in_experiments
from fedhca2.data import KINDS
from fedhca2.data.config import path_settings
from fedhca2.errors import UserError
from fedhca2.experiment import Experiment
from fedhca2.experiment.sources import read_config
from fedhca2.federation.flower.deploy.consent import (
    OWN_FILES,
    TOLD_KINDS,
    Invitation,
    RefusalError,
    check_order,
    expected_profile,
)
from fedhca2.federation.flower.deploy.site import add_noise
from fedhca2.federation.flower.deploy.site_config import SiteConfig
from fedhca2.messages import Addend, Delivery, Order
from fedhca2.params import Slot
from warm import output_of

EXPERIMENT = {
    "rounds": 4,
    "model": {"encoder": {"name": "swin_micro"}},
    "data": {"rooms": {"kind": "scenes", "domain": "indoor", "train": 4, "val": 1}},
    "clients": [{"name": "home", "data": "rooms", "tasks": ["depth"]}],
}
UPLOAD = {"encoder": "updates", "decoder": "updates"}
PARTS = ["encoder", "decoder", "head"]
HEADS = {"name": "fedhca2", "head": {"kind": "group_mean"}}


def site(**changes):
    return SiteConfig.model_validate({"client": "home", "tasks": ["depth"], "state": "/state"} | changes)


def experiment(**changes):
    return Experiment.parse(EXPERIMENT | changes)


def invitation(base=None, **changes):
    """The invitation to an experiment, with what a hostile server changed in it."""
    values = Invitation.for_experiment(base or experiment(), "run1").experiment
    return Invitation("run1", {**values, **changes})


def accept(base, own):
    return invitation(base).accept(own)


NYUD = {"data": {"rooms": {"kind": "nyud", "root": "/coordinator/rooms", "size": [64, 64]}}}
WEIGHTS = {"model": {"encoder": {"weights": "/coordinator/encoder.pt"}}}
TWO = {
    "data": {**NYUD["data"], "street": {"kind": "scenes", "domain": "outdoor"}},
    "clients": [*EXPERIMENT["clients"], {"data": "street", "split": ["semseg"]}],
}


def test_no_path_of_the_coordinator_is_sent():
    assert "/coordinator" not in str(invitation(experiment(**NYUD, **WEIGHTS)))


def test_a_sites_own_invitation_is_accepted_like_the_whole_one():
    whole, own = invitation(experiment(**TWO, metrics={"depth": "rmse"})), site(data={"root": "/site/rooms"})
    accepted = Invitation.read(whole.header_for("home")).accept(own)
    assert accepted == whole.accept(own)
    assert accepted.data["rooms"].root == Path("/site/rooms")


def test_a_method_by_path_crosses_by_its_name_and_runs_from_the_sites_own_file(tmp_path):
    folders = [tmp_path / "jane", tmp_path / "site"]
    for folder in folders:
        folder.mkdir()
        (folder / "my_method.py").write_text("from fedhca2.methods import METHODS\nMINE = METHODS['fedper']\n", "utf-8")
    base = experiment(method=f"{folders[0]}/my_method.py:MINE")
    assert invitation(base).header_for("home")["experiment"]["method"]["name"] == "my_method.py:MINE"
    with pytest.raises(UserError, match=r"\(methods in site\.yaml\)"):
        accept(base, site())
    accepted = accept(base, site(methods=[f"{folders[1]}/my_method.py:MINE"]))
    assert accepted.method_name == f"{folders[1]}/my_method.py:MINE"


def test_a_site_uses_its_own_weights_or_refuses(tmp_path):
    accepted = accept(experiment(**WEIGHTS), site(weights=tmp_path / "own.pt"))
    assert accepted.model.encoder.weights == str(tmp_path / "own.pt")
    with pytest.raises(UserError, match=r"none, scenes \(weights in site\.yaml\), got 'own'"):
        accept(experiment(**WEIGHTS), site())
    timm = experiment(model={"encoder": {"name": "resnet18.tv_in1k", "weights": "timm"}})
    assert accept(timm, site(weights="timm")).model.encoder.weights == "timm"


NOISY, NOISIER = {"clip": 1.0, "noise": 0.5}, {"clip": 0.1, "noise": 3.0}


@pytest.mark.parametrize(
    ("server", "own", "stricter"),
    [
        ({}, NOISY, NOISY),
        ({"clip": 9.0, "noise": 0.1}, NOISY, NOISY),
        (NOISIER, NOISY, NOISIER),
        (NOISIER, {}, NOISIER),
    ],
)
def test_of_the_bounds_of_site_and_server_the_stricter_ones_hold(server, own, stricter):
    accepted = accept(experiment(privacy=server, guard={"reach": 0}), site(privacy=own))
    assert {"clip": accepted.privacy.clip, "noise": accepted.privacy.noise} == stricter


def test_a_site_with_noise_of_its_own_measures_no_losses_and_beyond_the_servers_guard_needs_a_smaller_clip():
    diagnosed = experiment(diagnostics={"every": 1}, guard={"noise": 1.0})
    assert accept(diagnosed, site(privacy=NOISY)).diagnostics is None
    quiet = experiment(privacy={"clip": 1.0, "noise": 0.1})
    with pytest.raises(UserError, match=r"privacy\.noise: expected guard\.noise of 0\.5 or more .* got 0\.1"):
        accept(quiet, site(privacy=NOISY))
    assert accept(quiet, site(privacy={"clip": 0.1, "noise": 0.5})).privacy.noise == 0.5


@pytest.mark.parametrize("run", ["../x", "a/b", "", "a" * 65])
def test_the_name_of_a_run_is_no_path(run):
    with pytest.raises(UserError, match="letters and digits"):
        Invitation.read({"run": run, "experiment": {}})


def test_a_site_may_have_a_table_of_its_own(tmp_path):
    (tmp_path / "own.csv").write_text("age,days\n" + "".join(f"{age},{age / 9}\n" for age in range(20, 90)))
    table = {"kind": "table", "file": str(tmp_path / "own.csv"), "columns": {"days": "days"}}
    base = experiment(
        model={"encoder": "mlp"},
        tasks={"days": "regression"},
        data={"ward": {**table, "file": "/elsewhere.csv"}},
        clients=[{"name": "home", "data": "ward", "tasks": ["days"]}],
    )
    accepted = accept(base, site(tasks=["days"], data=table))
    profile = expected_profile(accepted, accepted.specs[0])
    assert profile.layouts[Slot("encoder")].shapes[0] == (256, 1)


def test_a_site_allows_all_encoders_of_the_built_in_experiments():
    names = [listing.name for listing in built_in_experiments()]
    specs = [spec for name in names for spec in Experiment.parse(read_config(name)).specs]
    assert {spec.model.encoder.title for spec in specs} <= set(site().encoders)


@pytest.mark.parametrize("kind", TOLD_KINDS)
def test_no_data_set_has_a_file_that_a_server_could_name(kind):
    assert path_settings(KINDS[kind]) <= {*OWN_FILES, "test"}  # refused too unless it is a number, see below


@pytest.mark.parametrize("kind", sorted({*KINDS} - {*TOLD_KINDS}))
def test_a_data_set_whose_settings_name_files_is_refused(kind):
    with pytest.raises(RefusalError, match=rf"\(data\.kind in site\.yaml\), got '{kind}'"):
        invitation(data={"rooms": {"kind": kind, "columns": {"image": "/etc/passwd"}}}).accept(site())


@pytest.mark.parametrize(
    ("own", "method", "fault"),
    [
        ({}, HEADS, r"encoder, decoder \(share in site\.yaml\), got 'head'"),
        ({"share": ["encoder"]}, "fedhca2", r"encoder \(share in site\.yaml\), got 'decoder'"),
        ({"methods": ["fedper"]}, "fedhca2", r"fedper \(methods in site\.yaml\), got 'fedhca2'"),
        ({"encoders": ["mlp"]}, "fedhca2", r"mlp \(encoders in site\.yaml\), got 'swin_micro'"),
    ],
)
def test_parts_methods_and_encoders_that_a_site_does_not_list_are_refused(own, method, fault):
    with pytest.raises(RefusalError, match=fault):
        accept(experiment(method=method), site(**own))


def test_every_refused_setting_has_its_own_line():
    with pytest.raises(RefusalError) as refused:
        invitation(model={"encoder": {"name": "x", "weights": "y"}}, method={"name": "a:b"}).accept(site())
    assert len(str(refused.value).splitlines()) == 3


HOME, ROOMS = EXPERIMENT["clients"][0], {"kind": "scenes", "domain": "indoor"}
WORK = {
    "epochs": ({"clients": [{**HOME, "epochs": 10**9}]}, "epochs"),
    "steps": ({"clients": [{**HOME, "steps": 10**9}]}, "steps"),
    "rounds": ({"rounds": 10**9}, "rounds"),
    "fine-tuning": ({"method": {"name": "fedbabu", "fine_tune_epochs": 10**9}}, "epochs"),
    "size": ({"data": {"rooms": {**ROOMS, "size": [32000, 32000]}}}, "pixels"),
    "a thin size": ({"data": {"rooms": {**ROOMS, "size": [32, 32 * 10**7]}}}, "pixels"),
    "a batch": ({"training": {"batch_size": 10**9}}, "pixels"),
    "images": ({"data": {"rooms": {**ROOMS, "train": 10**9}}}, "images"),
    "threads": ({"training": {"workers": 10**9}}, "workers"),
    "a learning rate that lets any row pass": ({"training": {"learning_rate": 1e30}}, "learning_rate"),
    "an encoder's rate that does": ({"training": {"encoder_rate": 1e30}}, "learning_rate"),
    "noise that lets any row pass": ({"guard": {"noise": 1e30}}, "noise"),
    "a width": ({"model": {"encoder": {"name": "swin_micro"}, "decoder_width": 4096}}, "width"),
}


@pytest.mark.parametrize("work", WORK)
def test_more_work_than_a_site_gives_is_refused_before_anything_is_built(work):
    change, key = WORK[work]
    with pytest.raises(RefusalError, match=rf"expected at most .* \(limits\.{key} in site\.yaml\)") as refused:
        accept(experiment(**change), site())
    assert refused.value.keys == (f"limits.{key}",)


def test_a_setting_that_the_site_does_not_know_is_refused():
    with pytest.raises(RefusalError, match=r"^copy_models_to: expected a setting"):
        invitation(copy_models_to="/home").accept(site())


def test_a_site_may_give_and_share_more():
    accepted = accept(experiment(**WORK["epochs"][0], method=HEADS), site(limits={"epochs": 10**9}, share=PARTS))
    assert accepted.specs[0].epochs == 10**9
    assert accepted.resolved_method.head


def test_an_invitation_with_a_hundred_million_clients_is_refused():
    crowd = [{**HOME, "name": f"c{number}", "copies": 10_000} for number in range(10_000)]
    with pytest.raises(RefusalError, match=r"limits\.clients in site\.yaml"):
        invitation(clients=crowd).accept(site())


def delivered(part, task=""):
    return {Slot(part, task): Delivery("trained", (Addend(torch.zeros(1)),))}


ORDERS = {
    "a head": (Order(0, upload={**UPLOAD, "head": "updates"}), r"upload: .*\(share in site\.yaml\), got 'head'"),
    "a head for its products": (Order(1, delivered("head", "depth"), upload=UPLOAD), r"deliveries: .*\(share in"),
    "parameters": (Order(0, upload={**UPLOAD, "encoder": "parameters"}), "got .*'encoder': 'parameters'"),
    "norms": (Order(1, delivered("encoder_norms"), upload=UPLOAD), "no deliveries of encoder_norms"),
    "nothing but scores": (Order(1, evaluate=True, train=False), "expected finish: False, train: True"),
    "an early end": (Order(1, finish=True, evaluate=True, train=False), "expected finish: False"),
    "training after the end": (Order(4, upload=UPLOAD), "expected finish: True, train: False"),
    "a round after the last": (Order(5, finish=True, train=False), "round: expected 0 to 4, got 5"),
    "half a round": (Order(0.5, upload=UPLOAD), r"round: expected 0 to 4, got 0\.5"),
    "something else": (Order(0, upload={"images": "all"}), r"\(share in site\.yaml\), got 'images'"),
}


@pytest.mark.parametrize("order", ORDERS)
def test_an_order_that_the_method_has_no_use_for_is_refused(order):
    sent, why = ORDERS[order]
    with pytest.raises(RefusalError, match=why):
        check_order(sent, experiment(), site())


@pytest.mark.parametrize("method", ["fedhca2", "fedavg", "fedper", "local", {"name": "matfl", "batch_norm": "average"}])
def test_the_orders_of_a_run_are_accepted(method):
    agreed = accept(experiment(method=method), site())
    rows = delivered("encoder") if method != "local" else {}
    orders = [Order(round, rows, upload=agreed.resolved_method.uploads(round)) for round in range(4)]
    less = Order(0, upload={part: kind for part, kind in orders[0].upload.items() if part != "encoder"})
    for order in [*orders, less, Order(4, evaluate=True, finish=True, train=False)]:
        check_order(order, agreed, site())


BUDGET = {"clip": 1.0, "noise": 2.0, "epsilon": 8.0}


def test_a_site_tells_its_last_scores_by_default_and_none_where_it_has_a_budget():
    assert (site().reported_scores.send, site(privacy=BUDGET).reported_scores.send) == ("final", "none")


@pytest.mark.parametrize(
    ("own", "fault"),
    [
        ({"privacy": BUDGET, "scores": "final"}, "scores: expected none, or scores with noise"),
        ({"scores": {"noise": 1e-9}}, r"noise.*0\.001"),
    ],
)
def test_exact_scores_of_a_site_with_a_budget_are_refused(own, fault):
    with pytest.raises(ValueError, match=fault):
        site(**own)


SCORES = {"depth": {"rmse": 2.0}, "edge": {"ods_f": 60.0, "ois_f": 61.0}}


def test_noised_scores_have_the_deviation_that_the_budget_pays_for():
    """The noise is in ranges, 80 m and 100 %, times the root of two."""
    samples = [add_noise(SCORES, 1.5, bytes([n]) * 32, round=0)[0] for n in range(250)]
    assert [list(scores) for scores in samples[0].values()] == [["rmse"], ["ods_f"]]
    for task, metric, width in (("depth", "rmse", 80), ("edge", "ods_f", 100)):
        values = torch.tensor([scores[task][metric] for scores in samples])
        assert float(values.std()) == pytest.approx(1.5 * 2**0.5 * width, rel=0.15)
        assert abs(float(values.mean()) - SCORES[task][metric]) < 4 * float(values.std()) / 250**0.5


@pytest.mark.parametrize(("end", "beyond"), [(80.0, 1e30), (0.0, float("nan"))])
def test_scores_outside_their_range_count_as_its_end(end, beyond):
    found, expected = (add_noise({"depth": {"rmse": value}}, 1.0, bytes(32), 0)[0] for value in (beyond, end))
    assert found == expected


SPEAKING = """
import socket, sys, threading
from fedhca2.federation.flower.deploy.worker import BlockedConnectionError, restrict_connections

with socket.create_server(("127.0.0.1", 0)) as friend, socket.create_server(("127.0.0.1", 0)) as stranger:
    restrict_connections({friend.getsockname()[1]})
    socket.create_connection(friend.getsockname()).close()
    refused = 0
    for contact in (
        lambda: socket.create_connection(stranger.getsockname()),
        lambda: socket.create_connection(("192.0.2.1", 443), timeout=1),
        lambda: socket.getaddrinfo("huggingface.co", 443),
        lambda: socket.gethostbyname("huggingface.co"),
        lambda: socket.socket(type=socket.SOCK_DGRAM).sendto(b"x", ("192.0.2.1", 53)),
    ):
        try:
            contact()
        except BlockedConnectionError:
            refused += 1
    print(refused)
"""


@pytest.mark.slow
def test_a_sites_process_can_connect_only_to_its_supernode():
    assert output_of("-c", SPEAKING) == "5\n"


def own_kind(tmp_path, task="depth"):
    code = f"class Rooms:\n    labels, size = {{'{task}': None}}, (32, 32)\n    def __init__(self, split, root): ...\n"
    code += "    def __len__(self): return 1\n    def __getitem__(self, index): ...\n"
    (tmp_path / f"{task}.py").write_text(code, "utf-8")
    return {"kind": f"{tmp_path}/{task}.py:Rooms", "root": str(tmp_path)}


def listed(path):
    return experiment(data={"rooms": {**EXPERIMENT["data"]["rooms"], "test": str(path)}})


def test_a_site_uses_its_own_file_of_test_images_or_refuses(tmp_path):
    own = {**EXPERIMENT["data"]["rooms"], "test": str(tmp_path / "ids.txt")}
    assert accept(listed("/elsewhere"), site(data=own)).data["rooms"].test == tmp_path / "ids.txt"
    with pytest.raises(RefusalError, match=r"data\.rooms\.test: .*site\.yaml"):
        accept(listed("/elsewhere"), site())


@pytest.mark.parametrize("test", ["/etc/passwd", ["/etc/passwd"], {"file": "/etc/passwd"}])
def test_a_server_that_names_a_file_of_test_images_is_refused(test):
    with pytest.raises(UserError, match=r"data\.rooms\.test"):
        invitation(data={"rooms": {**ROOMS, "test": test}}).accept(site())


def test_a_site_reads_its_images_with_code_of_its_own(tmp_path):
    own = own_kind(tmp_path)
    assert accept(experiment(data={"rooms": own}), site(data=own)).data["rooms"].kind == own["kind"]
    assert accept(experiment(), site(data=own)).data["rooms"].size == (64, 64)  # what the experiment has built in
    with pytest.raises(RefusalError, match=r"data\.rooms: expected how its images are read"):
        accept(experiment(data={"rooms": own}), site())


COUNT = (
    "from fedhca2.tasks import TASKS\nfrom dataclasses import replace\nCOUNT = replace(TASKS['depth'], weight=3.0)\n"
)
COUNTED = {"clients": [{"name": "home", "data": "rooms", "tasks": ["count"]}]}


def counting(tmp_path):
    (tmp_path / "declared.py").write_text(COUNT, "utf-8")
    data = own_kind(tmp_path, "count")
    return experiment(tasks={"count": f"{tmp_path}/declared.py:COUNT"}, data={"rooms": data}, **COUNTED), data


def test_code_and_files_of_the_coordinator_are_never_named_to_a_site(tmp_path):
    sent = invitation(counting(tmp_path)[0]).experiment
    assert (sent["data"]["rooms"], sent["tasks"]) == ({"kind": "own", "size": [32, 32]}, {"count": {"kind": "own"}})
    assert invitation(listed(tmp_path)).experiment["data"]["rooms"]["test"] == "own"


def test_a_site_uses_its_own_code_of_a_task_or_refuses(tmp_path):
    base, data = counting(tmp_path)
    own = {"count": f"{tmp_path}/declared.py:COUNT"}
    assert accept(base, site(tasks=["count"], data=data, own_tasks=own)).tasks["count"].kind == own["count"]
    with pytest.raises(RefusalError, match=r"tasks\.count\.kind: .*\(own_tasks in site\.yaml\)"):
        accept(base, site(tasks=["count"], data=data))


@pytest.mark.parametrize(("kind", "allowed"), [("data.rooms", "data.kind"), ("tasks.count", "own_tasks")])
def test_a_server_that_names_code_of_images_or_of_a_task_is_refused(tmp_path, kind, allowed):
    base, data = counting(tmp_path)
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'has run')!r}, 'w')", "utf-8")
    key, name = kind.split(".")
    evil = invitation(base, **{key: {name: {"kind": f"{tmp_path}/evil.py:X", "size": [32, 32]}}})
    with pytest.raises(RefusalError, match=rf"{kind}\.kind: .*\({allowed} in site\.yaml\)"):
        evil.accept(site(tasks=["count"], data=data))
    assert not (tmp_path / "has run").exists()


def site_file(folder, **values):
    file = folder / "site.yaml"
    file.write_text(yaml.safe_dump({"client": "home", "tasks": ["depth"], "state": "state"} | values), "utf-8")
    return file


def test_paths_in_a_site_file_are_relative_to_it(tmp_path):
    (tmp_path / "own.py").touch()
    data = {"kind": "nyud", "root": "rooms"}
    found = SiteConfig.load(site_file(tmp_path, data=data, turns="t", weights="own.pt", methods=["own.py:X"]))
    assert (found.state, found.data["root"]) == (tmp_path / "state", str(tmp_path / "rooms"))
    assert (found.turns, found.weights) == (tmp_path / "t", tmp_path / "own.pt")
    assert found.methods == (f"{tmp_path}/own.py:X",)


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        ({"turns": "site.yaml"}, "turns: expected a folder, got File exists"),
        ({"task": ["depth"]}, r"site\.yaml: task: unknown key\. Did you mean 'tasks'\?"),
        ({"scores": "sometimes"}, r"scores\.send: expected 'all', 'final' or 'none', got 'sometimes'"),
    ],
)
def test_an_error_in_a_site_file_names_its_location(tmp_path, values, fault):
    with pytest.raises(UserError, match=fault):
        SiteConfig.load(site_file(tmp_path, **values))
