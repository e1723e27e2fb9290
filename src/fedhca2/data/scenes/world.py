"""Scenes to render: their solids and light as tensors in the camera's frame."""

from dataclasses import dataclass
from math import cos, sin
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhca2.data.scenes.shapes import SHAPES, Array, Shape
from fedhca2.data.scenes.solids import Dice, Kind, Row, Solid, Table, move


@dataclass(frozen=True)
class Scene:
    """One scene in the camera's frame: a row per solid, the sky first.

    `light` holds the direction to the light (3), its colour (3), the ambient colour (3), haze per metre, noise, and the
    focal length in halves of the picture's shorter side.
    """

    solids: Table
    light: Table
    key: int


def photograph(
    dice: Dice,
    world: list[Table],
    heaven: Row,
    *,
    eye: Row,
    view: Table,
    focal: float,
    elevation: tuple[float, float],
    haze: float,
) -> Scene:
    """The world as seen by a camera at `eye`; `view` is the rotation from the camera's frame to the world's.

    :param heaven: the sky.
    :param focal: the focal length, in halves of the picture's shorter side.
    :param elevation: the least and the largest height of the light, in radians.
    :param haze: how much of it there is per metre.
    """
    high, around = dice.uniform(*elevation), dice.uniform(-2.6, 2.6)
    # Around 0 the light is behind the camera.
    sun = np.array([cos(high) * sin(around), sin(high), cos(high) * cos(around)]) @ view
    table = np.concatenate(world)
    table[:, Solid.CENTRE] -= eye
    solids = np.concatenate([np.array([heaven]), move(table, view.T, (0.0, 0.0, 0.0))])
    exposure, contrast = dice.uniform(0.75, 1.3), dice.uniform(0.3, 0.7)
    direct = exposure * (1 - contrast * 0.5) * np.array(dice.several(0.9, 1.1, 3)) * 1.1
    ambient = exposure * contrast * np.array(dice.several(0.85, 1.15, 3)) * 0.8
    light = np.concatenate([sun, direct, ambient, [haze, dice.uniform(0.005, 0.04), focal]])
    return Scene(solids, light, dice.below(2**31))


@dataclass(frozen=True)
class Light:
    """Several scenes' light: a frame [3, 3, b, 1] whose third row points to it, colours [3, b, 1], the rest [b, 1]."""

    frame: Tensor
    colour: Tensor
    ambient: Tensor
    haze: Tensor
    noise: Tensor
    key: Tensor


class Solids(NamedTuple):
    """All solids of a kind: the scene and the row of each, and their coefficients."""

    scene: Tensor
    row: Tensor
    shape: Shape


@dataclass(frozen=True)
class World:
    """Several scenes of at most `places` solids each.

    A solid has a row, scene by scene; `columns` [columns, rows] describes it. A scene's first row is its sky; rows
    beyond its last solid are empty.
    """

    most_solids: int
    columns: Tensor
    solids: list[Solids]
    focal: Tensor
    light: Light


def pack(scenes: list[Scene], device: torch.device) -> World:
    """Put the scenes' solids into tensors, in each scene in the order of their kinds."""

    def tensor(array: NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(array).to(device)

    most_solids = max(len(scene.solids) for scene in scenes)
    rows = np.zeros((len(scenes), most_solids, scenes[0].solids.shape[1]))
    for own, scene in zip(rows, scenes, strict=True):
        own[: len(scene.solids)] = scene.solids[np.argsort(scene.solids[:, Solid.KIND], kind="stable")]
    columns = np.ascontiguousarray(rows.reshape(-1, rows.shape[2]).T, dtype=np.float32)
    kind, texture = columns[Solid.KIND].astype(int), columns[Solid.TEXTURE]
    values = np.stack([scene.light for scene in scenes], axis=1).astype(np.float32)
    frame, solids = _light_frame(values[:3]), []
    for k, shape in SHAPES.items():
        mine = np.flatnonzero(kind == k)
        if len(mine):
            fields = shape.prepare(columns[:, mine], frame[..., mine // most_solids])
            fields_of_shape = shape._make(tensor(field)[..., None] for field in fields)
            solids.append(Solids(tensor(mine // most_solids), tensor(mine), fields_of_shape))
    masks = [kind == Kind.SKY, kind <= Kind.PLANE, *(kind == k for k in (Kind.BOX, Kind.ELLIPSOID, Kind.CAPSULE))]
    masks += [texture == t for t in range(1, 5)]
    lights = tensor(values[3:, :, None])
    key = torch.tensor([[scene.key] for scene in scenes], device=device)
    light = Light(tensor(frame[..., None]), lights[:3], lights[3:6], lights[6], lights[7], key)
    marked = tensor(np.concatenate([columns, np.array(masks, dtype=np.float32)]))
    return World(most_solids, marked, solids, lights[8], light)


def _light_frame(direction: Array) -> Array:
    """Rows [3, 3, b] of rotations whose third row is the unit vector `direction` [3, b]."""
    x, y, z = direction
    flat = np.sqrt(x * x + y * y)
    first = np.stack([-y / flat, x / flat, np.zeros_like(x)])
    second = np.stack([-z * x / flat, -z * y / flat, flat])
    return np.stack([first, second, direction])
