from collections import Counter

import pytest
import yaml

from fedhca2.errors import UserError
from fedhca2.experiment import Experiment, assign_shards, open_data
from fedhca2.experiment.sources import apply_overrides
from small import SMALL
from tiny_encoder import TINY


def small(**changes):
    return {**SMALL, **changes}


def names(values):
    return [spec.name for spec in Experiment.parse(values).specs]


def test_a_split_is_one_client_for_each_task_and_copies_are_numbered():
    assert sorted(Counter(spec.kind for spec in Experiment.load("demo").specs).values()) == [3, 3, 3]
    assert names(SMALL) == ["outdoor-semseg", "outdoor-normals", "home"]
    copies = [{"data": "indoor", "split": ["depth"], "copies": 2}]
    assert names(small(clients=copies)) == ["indoor-depth-1", "indoor-depth-2"]


def test_single_task_and_multi_task_clients_each_divide_all_images():
    clients = [*SMALL["clients"], {"name": "street", "data": "outdoor", "tasks": ["semseg", "sal"]}]
    experiment = Experiment.parse(small(clients=clients))
    shards = assign_shards(experiment, open_data(experiment))
    assert sorted(shards["outdoor-semseg"].train + shards["outdoor-normals"].train) == list(range(12))
    assert sorted(shards["street"].train) == list(range(12))


def test_a_client_of_human_parts_alone_leaves_out_scenes_without_people():
    experiment = Experiment.parse(small(clients=[{"data": "outdoor", "split": ["human_parts"]}]))
    data = open_data(experiment)
    shard = assign_shards(experiment, data)["outdoor-human_parts"]
    assert all(data["outdoor"].train.load(i, ["human_parts"])["human_parts"].any() for i in shard.train)


def test_the_own_method_has_its_settings_among_those_of_all_methods_too():
    methods = {"fedhca2": {"groups": True, "c": 0.3, "encoder": {"c": 0.2}}, "fedper": {"by": "samples"}}
    experiment = Experiment.parse(small(method={"name": "fedhca2", "encoder": {"c": 0.1}}, methods=methods))
    encoder = experiment.resolved_method.encoder
    assert (encoder.groups, encoder.c) == (True, 0.1)
    again = Experiment.parse(yaml.safe_load(experiment.to_yaml()))
    assert (again.to_dict(), again.resolved_method) == (experiment.to_dict(), experiment.resolved_method)
    assert again.with_method("fedper").resolved_method.encoder.by == "samples"


def test_a_file_with_a_method_is_the_same_from_anywhere(tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "own.py").write_text("from fedhca2.methods import METHODS\n\nOWN = METHODS['fedhca2']\n")
    (tmp_path / "mine" / "own.yaml").write_text(yaml.safe_dump(small(methods={"own.py:OWN": {"c": 0.1}})))
    monkeypatch.chdir(tmp_path)
    experiment = Experiment.load("mine/own.yaml")
    assert experiment.with_method("mine/own.py:OWN").resolved_method.encoder.c == 0.1


OF_ONE = {"data": "indoor", "tasks": ["depth"]}


def with_models(*own, **model):
    """Settings of an experiment with this model, and of clients whose models have settings of their own."""
    clients = [{**OF_ONE, "name": f"c{i}", **({"model": each} if each else {})} for i, each in enumerate(own)]
    return {"model": {"encoder": {"name": TINY}, **model}, "clients": clients}


def models(*own, **model):
    return [spec.model for spec in Experiment.parse(small(**with_models(*own, **model))).specs]


def test_a_client_changes_only_what_it_names_of_the_model_unless_it_has_another_encoder():
    own = [{}, {"encoder": {"weights": "none"}, "decoder_width": 8}, {"encoder": {"name": "swin_micro"}}]
    first, second, third = models(*own, encoder={"name": TINY, "drop_path": 0.2})
    assert (second.encoder, second.decoder_width) == (first.encoder, 8)
    assert third.encoder.drop_path == 0


def test_a_clients_weights_have_a_digest_of_their_own(tmp_path):
    (tmp_path / "own").write_bytes(b"weights")
    own = {"encoder": {"name": "swin_micro", "weights": str(tmp_path / "own")}}
    assert models(own, encoder={"name": TINY, "sha256": "0" * 64})[0].encoder.sha256 is None
    written = Experiment.parse(small(clients=[{**OF_ONE, "model": own}])).to_dict()
    assert len(written["clients"][0]["model"]["encoder"]["sha256"]) == 64
    assert Experiment.parse(written).to_dict() == written


MISTAKES = [
    ({"round": 3}, "round: unknown key. Did you mean 'rounds'?"),
    ({"rounds": 0}, "rounds: expected at least 1, got 0"),
    ({"rounds": True}, "rounds: expected a number, got True"),
    ({"data": {"indoor": {"kind": "scenes", "size": [True, 32]}}}, "indoor.size: expected a number, got [True, 32]"),
    ({"data": {"indoor": {"kind": "scenes", "size": [9, 9, 9]}}}, "size: expected at most 2 entries, got [9, 9, 9]"),
    ({"data": {"indoor": {"kind": "scenes", "domain": "indoor", "size": [30, 32]}}}, "multiple of 32"),
    ({"training": {"learning_rat": 1}}, "training.learning_rat: unknown key. Did you mean 'learning_rate'?"),
    ({"training": {"optimizer": {"kind": "lion"}}}, "training.optimizer.kind: expected 'adamw', 'adam' or 'sgd'"),
    ({"model": {"decoder_width": 10**9}}, "model.decoder_width: expected at most 8192"),
    ({"model": {"feature_width": 10**9}}, "model.feature_width: expected at most 8192"),
    ({"model": {"encoder": {"adapters": {"rank": 10**9}}}}, "model.encoder.adapters.rank: expected at most 8192"),
    ({"method": "fedhca"}, "Did you mean 'fedhca2'?"),
    ({"method": {"name": "fedhca2", "c": 2}}, "got 2"),
    ({"method": 7}, "method: expected a mapping of keys to values, got 7"),
    ({"methods": {"fedhca": {}}}, "methods.fedhca: expected a method, got 'fedhca'. Did you mean 'fedhca2'?"),
    ({"methods": {"matfl": {"clsters": 2}}}, "methods.matfl: unknown setting 'clsters'. Did you mean 'clusters'?"),
    ({"methods": {"fedhca2": {"encoder": {"c": 2}}}}, "methods.fedhca2: encoder.c: "),
    ({"methods": {"fedhca2": 3}}, "methods.fedhca2: expected a mapping of keys to values, got 3"),
    ({"methods": ["fedhca2"]}, "methods: expected a mapping of keys to values"),
    ({"methods": {7: {}}}, "methods[7]"),
    ({"clients": []}, "clients: "),
    ({"clients": [OF_ONE | {"tasks": ["detph"]}]}, "of data set 'indoor', got 'detph'. Did you mean 'depth'?"),
    ({"clients": [OF_ONE | {"data": "indor"}]}, "of this experiment, got 'indor'. Did you mean 'indoor'?"),
    ({"clients": [{"data": "indoor"}]}, "clients[0]: expected either 'tasks' or 'split'"),
    ({"clients": [OF_ONE | {"tasks": ["depth", "depth"]}]}, "expected each task once"),
    ({"clients": [OF_ONE] * 2}, "got 2 clients called 'indoor'"),
    ({"clients": [OF_ONE | {"name": "../x"}]}, "clients[0].name: a name: expected"),
    ({"clients": [OF_ONE | {"name": "klinik-ü"}]}, "the letters a to z and A to Z"),
    ({"metrics": {"sla": "miou"}}, "metrics: expected names of tasks, got 'sla'. Did you mean 'sal'?"),
    ({"metrics": {"sal": "moiu"}}, "metrics.sal: expected a metric of 'sal', got 'moiu'. Did you mean 'miou'?"),
    (with_models({}, {"encoder": {"nmae": "x"}}), "clients[1].model.encoder.nmae: unknown key. Did you mean"),
    (with_models({}, {"decoder_width": 3}), "clients[1].model.decoder_width: expected a multiple of 4, got 3"),
    (with_models({}, {"encoder": 3}), "clients[1].model.encoder: expected a mapping of keys to values, got 3"),
    (
        with_models({}, {"encoder": {"weights": "scenes"}}),
        f"same weights at all clients with the encoder {TINY!r}, got",
    ),
]


@pytest.mark.parametrize(("changes", "line"), MISTAKES)
def test_a_mistake_is_one_line_that_names_the_setting(changes, line):
    with pytest.raises(UserError) as caught:
        Experiment.parse(small(**changes))
    assert any(line in fault for fault in caught.value.lines), caught.value.lines


def test_a_saved_config_keeps_the_letters_of_its_title_and_a_list_is_refused():
    assert "title: Größe 😀\n" in Experiment.load("demo", ["title=Größe 😀"]).to_yaml()
    with pytest.raises(UserError, match=r"config: expected a mapping of keys to values, got \['rounds'\]"):
        Experiment.parse(["rounds"])


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"training": {"batch_size": 8}}, r"training\.batch_size = 8 training images for 'outdoor-semseg', got 6"),
        (
            {"clients": [{"data": "indoor", "split": ["depth"], "copies": 9}]},
            r"data\.indoor\.partition: .*6 images for 9 clients",
        ),
    ],
)
def test_too_few_images_are_refused_before_training(changes, line):
    experiment = Experiment.parse(small(**changes))
    with pytest.raises(UserError, match=line):
        assign_shards(experiment, open_data(experiment))


@pytest.mark.parametrize(
    "override", ["rounds", "=3", "clients.9.epochs=1", "rounds.deep=1", "rounds=[1", "method" + ".a" * 9999 + "=1"]
)
def test_an_override_that_cannot_be_applied_is_refused(override):
    with pytest.raises(UserError, match="--set"):
        apply_overrides(SMALL, [override])
