"""Data sets whose CSV files have as many classes as the others', under the same names or under others."""

import pytest
import torch
from PIL import Image

from fedhca2.federation.in_process import InProcess
from fedhca2.federation.rounds import run_rounds
from fedhca2.federation.server import Server, check_method
from small import clients, small
from small_run import Silent
from tiny_encoder import TINY


def shop(folder, brands):
    """A folder with ten images of two brands, as settings of a data set."""
    folder.mkdir()
    lines = ["image,brand"]
    for number in range(10):
        Image.new("RGB", (32, 32), (25 * number, 0, 0)).save(folder / f"{number}.png")
        lines.append(f"{number}.png,{brands[number % 2]}")
    (folder / "labels.csv").write_text("\n".join(lines))
    return {"kind": "csv", "root": str(folder), "size": [32, 32], "columns": {"classification": "brand"}}


@pytest.fixture
def trained(tmp_path):
    """A function that trains a client on each of two data sets, with a mean of all heads; returns their parameters."""

    def run(north, south):
        shops = {"north": shop(tmp_path / "north", north), "south": shop(tmp_path / "south", south)}
        experiment = small(
            rounds=1,
            method={"name": "fedavg", "head": {"kind": "mean"}},
            model={"encoder": {"name": TINY}, "decoder_width": 8},
            data=shops,
            clients=[{"name": name, "data": name, "tasks": ["classification"]} for name in shops],
        )
        built = clients(experiment)
        fleet = InProcess(list(built.values()))
        server = Server(experiment.resolved_method, fleet.profiles.values())
        check_method(experiment.resolved_method, fleet.profiles)
        run_rounds(server, fleet, 1, 0, Silent())
        return [client.personal.model.state_dict() for client in built.values()]

    return run


def equal(models, part):
    one, other = models
    return all(torch.equal(value, other[name]) for name, value in one.items() if name.startswith(part))


def test_heads_of_the_same_classes_are_averaged(trained, caplog):
    assert equal(trained(["tea", "milk"], ["milk", "tea"]), "heads")
    assert "classes" not in caplog.text


def test_heads_of_different_classes_are_not_averaged_and_the_log_names_them(trained, caplog):
    models = trained(["tea", "milk"], ["bread", "milk"])
    assert (equal(models, "encoder.body"), equal(models, "heads")) == (True, False)
    (told,) = [record.message for record in caplog.records if "classes" in record.message]
    assert "north/classification and south/classification" in told
