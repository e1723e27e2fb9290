from collections import Counter

import pytest
import yaml

from fedhca2.errors import UserError
from fedhca2.experiment import Experiment, assign_shards, open_data
from fedhca2.experiment.sources import apply_overrides
from small import SMALL


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
