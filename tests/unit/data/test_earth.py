"""Maps of the Earth in tiles, from the packages of fedhca2[earth]."""

import sys
from importlib.util import find_spec
from typing import get_args

import numpy as np
import pytest

from command import printed
from fedhca2.data.earth import Continent
from fedhca2.experiment import Experiment, assign_shards, open_data
from own_experiments import fault, write_experiment
from tiny_encoder import TINY

CONTINENTS, SPLITS = get_args(Continent), ("train", "val")
TASKS = {"water": "semseg", "elevation": {"kind": "depth", "unit": "km"}, "relief": "semseg", "shores": "edge"}
NEEDED = ("pvlib", "h5py", "mpl_toolkits")
installed = pytest.mark.skipif(not all(map(find_spec, NEEDED)), reason="needs fedhca2[earth]")


def experiment(**settings):
    data = {"maps": {"kind": "earth", "continent": "oceania", "size": [32, 32], **settings}}
    clients = [{"data": "maps", "tasks": [*TASKS]}]
    return {"tasks": TASKS, "data": data, "clients": clients, "method": "local", "model": {"encoder": {"name": TINY}}}


def opened(continent, split="train", **settings):
    return Experiment.parse(experiment(continent=continent, **settings)).open("maps", split)


def centres(data):
    """The degrees north and east of the centres of all tiles."""
    return [[float(part[:-1]) * (1 if part[-1] in "NE" else -1) for part in id.split()] for id in data.ids]


def tiles(continent, split="train"):
    """The degrees north and east of the corner of each tile of 32 cells, and its image and labels."""
    data = opened(continent, split)
    for i, (north, east) in enumerate(centres(data)):
        yield north + 16 / 12, east - 16 / 12, {name: each.numpy() for name, each in data.load(i, [*TASKS]).items()}


def blocks(continent, split, side):
    """The blocks of 128×128 cells in which the tiles of a split are."""
    places = centres(opened(continent, split, size=[side, side]))
    return {(int((90 - north) * 12 // 128), int((east + 172) * 12 // 128)) for north, east in places}


LOCATIONS = {  # continent, degrees north and east, whether there is land, lowest and highest elevation in km, relief
    "Mont Blanc": ("europe", 45.83, 6.87, 1, 2, 4.8, 2),
    "Dodge City": ("north_america", 37.75, -100.0, 1, 0.7, 0.85, 0),
    "Lhasa": ("asia", 29.65, 91.1, 1, 3.6, 4.8, 2),
    "Manaus": ("south_america", -3.1, -60.0, 1, 0.001, 0.15, 0),
    "Canberra": ("oceania", -35.3, 149.1, 1, 0.5, 0.9, 1),
    "Lake Victoria": ("africa", -1.0, 33.0, 0, 1.1, 1.2, 0),
    "the Adriatic, unknown": ("europe", 43.5, 15.0, 0, 0, 0, 255),
    "the Caspian Depression, below the sea": ("europe", 47.0, 49.0, 1, 0.0009, 0.0011, 0),
}


@installed
@pytest.mark.parametrize("name", LOCATIONS)
def test_a_location_is_in_its_tile(name):
    continent, north, east, land, lowest, highest, relief = LOCATIONS[name]
    for top, left, tile in (tile for split in SPLITS for tile in tiles(continent, split)):
        if 0 <= top - north < 32 / 12 and 0 <= east - left < 32 / 12:
            cell = ..., int((top - north) * 12), int((east - left) * 12)
            assert (tile["water"][cell], tile["relief"][cell]) == (land, relief)
            assert lowest <= tile["elevation"][cell] <= highest
            return
    pytest.fail("no tile has this place")


@installed
def test_the_picture_and_shores_fit_the_water():
    blue = {0: [], 1: []}
    for _, _, tile in tiles("oceania"):
        land, shore = tile["water"][0], tile["shores"][0]
        assert shore.any() == (len(np.unique(land)) == 2)
        for row, column in zip(*np.nonzero(shore), strict=True):
            assert len(np.unique(land[row : row + 2, column : column + 2])) == 2
        for kind, found in blue.items():
            found += (tile["image"][2].astype(int) - tile["image"][0])[land == kind].tolist()
    assert np.mean(blue[0]) > 20 > 0 > np.mean(blue[1])


@installed
def test_continents_and_splits_share_no_tile():
    tiles = [opened(continent, split, size=[64, 64]).ids for continent in CONTINENTS for split in SPLITS]
    assert len({id for ids in tiles for id in ids}) == sum(map(len, tiles))
    assert (min(map(len, tiles[::2])) >= 25, min(map(len, tiles[1::2])) >= 5) == (True, True)


@installed
def test_validation_takes_whole_blocks_of_every_continent_for_every_size():
    cases = [(continent, side) for continent in CONTINENTS for side in (32, 64, 128)]
    train, val = (set().union(*(blocks(continent, split, side) for continent, side in cases)) for split in SPLITS)
    assert not train & val
    assert 0.15 < len(val) / len(train | val) < 0.25


@installed
@pytest.mark.parametrize(("continent", "low", "high"), [("africa", -10, 10), ("asia", 62, 72)])
def test_relief_does_not_depend_on_the_latitude(continent, low, high):
    steep = []
    for top, _, tile in tiles(continent):
        if low < (north := top - 16 / 12) < high and (tile["elevation"] > 0).all():
            width = round(5 / np.cos(np.radians(north)))  # cells of 46 km from west to east
            elevation = tile["elevation"][0]
            rise = np.abs(elevation[:, width - 1 :] - elevation[:, : 1 - width])
            steep += tile["relief"][0][:, width // 2 :][:, : rise.shape[1]][rise >= 0.6].tolist()
    assert set(steep) == {2}


@installed
def test_a_run_scores_elevation_in_kilometres(tmp_path):
    shown = printed("run", write_experiment(tmp_path, **experiment()), "--out", tmp_path / "run")
    assert " km" in next(line for line in shown.splitlines() if "elevation" in line and "RMSE" in line)


@installed
def test_the_experiment_has_all_continents_and_tasks():
    earth = Experiment.load("earth")
    assert len(assign_shards(earth, open_data(earth))) == len(CONTINENTS)
    assert {task for spec in earth.specs for task in spec.tasks} == TASKS.keys()


BAD = {
    "an unknown continent": ({"continent": "atlantis"}, ["continent", "'africa'", "'atlantis'"]),
    "a size that does not divide a block": ({"size": [48, 64]}, ["size", "divide 128", "48×64"]),
    "a size of nothing": ({"size": [0, 64]}, ["size", "0"]),
}


@pytest.mark.parametrize(("settings", "words"), BAD.values(), ids=BAD)
def test_a_bad_setting_is_one_line_before_training(tmp_path, settings, words):
    message = fault(write_experiment(tmp_path, **experiment(**settings)))
    assert all(word in message for word in ("data.maps", *words)), message


@pytest.mark.parametrize("package", ["pvlib", *(pytest.param(name, marks=installed) for name in NEEDED[1:])])
def test_a_missing_package_is_one_line_that_says_how_to_install_it(package, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    message = fault(write_experiment(tmp_path, **experiment()))
    assert all(word in message for word in ("data.maps", package, "pip install 'fedhca2[earth]'")), message
