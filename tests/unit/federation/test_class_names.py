"""Data sets whose CSV files have as many classes as the others', under the same names or under others."""

import pytest
from PIL import Image

from fedhca2.federation.in_process import InProcess
from fedhca2.federation.rounds import run_rounds
from fedhca2.federation.server import Server, check_method
from fedhca2.run_folder.records import Watcher
from small import clients, small
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
