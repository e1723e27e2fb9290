from collections import Counter

import pytest
import yaml

from fedhca2.errors import UserError
from fedhca2.experiment import Experiment, assign_shards, open_data
from fedhca2.experiment.sources import apply_overrides
from small import SMALL


def small(**changes):
    return {**SMALL, **changes}


def wrong(values):
    with pytest.raises(UserError) as caught:
        Experiment.parse(values)
    return caught.value.lines


def names(values):
    return [spec.name for spec in Experiment.parse(values).specs]


def test_the_demo_has_three_clients_of_each_of_three_kinds():
    assert sorted(Counter(spec.kind for spec in Experiment.load("demo").specs).values()) == [3, 3, 3]


def test_a_split_is_one_client_for_each_task():
    assert names(SMALL) == ["outdoor-semseg", "outdoor-normals", "home"]


def test_copies_are_numbered():
    assert names(small(clients=[{"data": "indoor", "split": ["depth"], "copies": 2}])) == [
        "indoor-depth-1",
        "indoor-depth-2",
    ]


def test_single_task_clients_share_the_images():
    experiment = Experiment.parse(SMALL)
    shards = assign_shards(experiment, open_data(experiment))
    assert sorted(shards["outdoor-semseg"].train + shards["outdoor-normals"].train) == list(range(12))


def test_multi_task_clients_share_the_images_among_themselves():
    clients = [*SMALL["clients"], {"name": "street", "data": "outdoor", "tasks": ["semseg", "sal"]}]
    experiment = Experiment.parse(small(clients=clients))
    assert sorted(assign_shards(experiment, open_data(experiment))["street"].train) == list(range(12))


def test_a_client_of_human_parts_alone_leaves_out_scenes_without_people():
    experiment = Experiment.parse(small(clients=[{"data": "outdoor", "split": ["human_parts"]}]))
    data = open_data(experiment)
    shard = assign_shards(experiment, data)["outdoor-human_parts"]
    assert all(data["outdoor"].train.load(i, ["human_parts"])["human_parts"].any() for i in shard.train)


def test_the_written_config_is_read_back_as_the_same():
    experiment = Experiment.parse(small(method={"name": "fedhca2", "c": 0.2, "decoder": None}))
    again = Experiment.parse(yaml.safe_load(experiment.to_yaml()))
    assert (again.to_dict(), again.resolved_method) == (experiment.to_dict(), experiment.resolved_method)


def test_a_saved_config_keeps_the_letters_of_its_title():
    assert "title: Größe 😀\n" in Experiment.load("demo", ["title=Größe 😀"]).to_yaml()


def test_another_method_is_really_another_method():
    experiment = Experiment.parse(SMALL)
    assert experiment.resolved_method != experiment.with_method("local").resolved_method


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


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"round": 3}, "round: unknown key. Did you mean 'rounds'?"),
        ({"rounds": 0}, "rounds: expected at least 1, got 0"),
        ({"rounds": True}, "rounds: expected a number, got True"),
        (
            {"data": {"indoor": {"kind": "scenes", "size": [True, 32]}}},
            "data.indoor.size: expected a number, got [True, 32]",
        ),
        (
            {"data": {"indoor": {"kind": "scenes", "size": [32, 32, 32]}}},
            "data.indoor.size: expected at most 2 entries, got [32, 32, 32]",
        ),
        ({"training": {"learning_rat": 1}}, "training.learning_rat: unknown key. Did you mean 'learning_rate'?"),
        ({"method": "fedhca"}, "Did you mean 'fedhca2'?"),
        ({"method": {"name": "fedhca2", "c": 2}}, "got 2"),
        ({"model": {"decoder_width": 10**9}}, "model.decoder_width: expected at most 8192"),
        ({"model": {"feature_width": 10**9}}, "model.feature_width: expected at most 8192"),
        (
            {"model": {"encoder": {"adapters": {"rank": 10**9}}}},
            "model.encoder.adapters.rank: expected at most 8192",
        ),
        ({"methods": {"fedhca": {}}}, "methods.fedhca: expected a method, got 'fedhca'. Did you mean 'fedhca2'?"),
        ({"methods": {"matfl": {"clsters": 2}}}, "methods.matfl: unknown setting 'clsters'. Did you mean 'clusters'?"),
        ({"methods": {"fedhca2": {"encoder": {"c": 2}}}}, "methods.fedhca2: encoder.c: "),
        ({"methods": {"fedhca2": 3}}, "methods.fedhca2: expected a mapping of keys to values, got 3"),
        ({"methods": ["fedhca2"]}, "methods: expected a mapping of keys to values"),
        ({"methods": {7: {}}}, "methods[7]"),
        ({"method": 7}, "method: expected a mapping of keys to values, got 7"),
        ({"clients": []}, "clients: "),
        (
            {"clients": [{"data": "indoor", "tasks": ["detph"]}]},
            "expected tasks of data set 'indoor', got 'detph'. Did you mean 'depth'?",
        ),
        (
            {"clients": [{"data": "indor", "tasks": ["depth"]}]},
            "expected a data set of this experiment, got 'indor'. Did you mean 'indoor'?",
        ),
        ({"clients": [{"data": "indoor"}]}, "clients[0]: expected either 'tasks' or 'split'"),
        ({"clients": [{"data": "indoor", "tasks": ["depth", "depth"]}]}, "expected each task once"),
        ({"clients": [{"data": "indoor", "tasks": ["depth"]}] * 2}, "got 2 clients called 'indoor'"),
        ({"clients": [{"data": "indoor", "tasks": ["depth"], "name": "../x"}]}, "clients[0].name: a name: expected"),
        ({"clients": [{"data": "indoor", "tasks": ["depth"], "name": "klinik-ü"}]}, "the letters a to z and A to Z"),
        ({"data": {"indoor": {"kind": "scenes", "domain": "indoor", "size": [30, 32]}}}, "multiple of 32"),
        ({"metrics": {"sla": "miou"}}, "metrics: expected names of tasks, got 'sla'. Did you mean 'sal'?"),
        ({"metrics": {"sal": "moiu"}}, "metrics.sal: expected a metric of 'sal', got 'moiu'. Did you mean 'miou'?"),
        ({"training": {"optimizer": {"kind": "lion"}}}, "training.optimizer.kind: expected 'adamw', 'adam' or 'sgd'"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_place(changes, line):
    lines = wrong(small(**changes))
    assert any(line in found for found in lines), lines


def test_what_is_no_mapping_is_refused():
    assert wrong(["rounds"]) == ["config: expected a mapping of keys to values, got ['rounds']"]


def test_a_shard_smaller_than_a_batch_is_refused_before_training():
    experiment = Experiment.parse(small(training={"batch_size": 8}))
    with pytest.raises(UserError, match=r"training\.batch_size = 8 training images for 'outdoor-semseg', got 6"):
        assign_shards(experiment, open_data(experiment))


def test_more_clients_than_images_are_refused():
    experiment = Experiment.parse(small(clients=[{"data": "indoor", "split": ["depth"], "copies": 9}]))
    with pytest.raises(UserError, match=r"6 images for 9 clients"):
        assign_shards(experiment, open_data(experiment))


def test_a_method_by_name_can_be_given_settings():
    assert apply_overrides({"method": "fedhca2"}, ["method.c=0.2"]) == {"method": {"name": "fedhca2", "c": 0.2}}


@pytest.mark.parametrize(
    "override", ["rounds", "=3", "clients.9.epochs=1", "rounds.deep=1", "rounds=[1", "method" + ".a" * 9999 + "=1"]
)
def test_an_override_that_cannot_be_applied_is_refused(override):
    with pytest.raises(UserError, match="--set"):
        apply_overrides(SMALL, [override])


def test_overrides_leave_the_original():
    values = {"rounds": 1}
    apply_overrides(values, ["rounds=2"])
    assert values == {"rounds": 1}


def test_broken_yaml_is_one_line(tmp_path):
    path = tmp_path / "broken.yaml"
    path.write_text("rounds: [1")
    with pytest.raises(UserError, match="not valid YAML") as caught:
        Experiment.load(path)
    assert len(caught.value.lines) == 1
