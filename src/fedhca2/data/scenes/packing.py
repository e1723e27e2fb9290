"""Several scenes as one set of tensors."""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhca2.data.scenes import coefficients
from fedhca2.data.scenes.coefficients import Array, Box, Capsule, Ellipsoid, Plane, Shape
from fedhca2.data.scenes.scene import Scene
from fedhca2.data.scenes.shading import Light
from fedhca2.data.scenes.solids import CENTRE, HALF, KIND, TEXTURE, Kind
from fedhca2.data.scenes.tiles import Balls

_KINDS: dict[Kind, tuple[Callable[..., Shape], Callable[[Array, Array], tuple[Array, ...]]]] = {
    Kind.PLANE: (Plane, coefficients.plane),
    Kind.BOX: (Box, coefficients.box),
    Kind.ELLIPSOID: (Ellipsoid, coefficients.ellipsoid),
    Kind.CAPSULE: (Capsule, coefficients.capsule),
}


@dataclass(frozen=True)
class Shapes:
    """The coefficients of all solids of a kind: a row for each number, a column for each solid."""

    make: Callable[..., Shape]
    rows: Tensor
    fields: list[tuple[int, ...]]

    def pick(self, solids: Tensor) -> Shape:
        """The coefficients of some solids [k], perhaps several times."""
        rows = torch.split(self.rows.index_select(1, solids)[..., None], [prod(field) for field in self.fields])
        return self.make(*(row.view(*field, -1, 1) for row, field in zip(rows, self.fields, strict=True)))


@dataclass(frozen=True)
class World:
    """Several scenes: balls about their solids, the solids' columns [columns, p] and coefficients, light and camera."""

    balls: Balls
    columns: Tensor
    shapes: dict[Kind, Shapes]
    frame: Array
    focal: Array
    light: Light


def pack(scenes: list[Scene], device: torch.device) -> World:
    """The scenes with their solids one after the other, in each scene in the order of their kinds."""

    def tensor(array: NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(array).to(device)

    rows = np.concatenate([scene.solids for scene in scenes])
    owner = np.repeat(np.arange(len(scenes)), [len(scene.solids) for scene in scenes])
    order = np.lexsort((rows[:, KIND], owner))
    columns, owner = np.ascontiguousarray(rows[order].T, dtype=np.float32), owner[order]
    kind, texture = columns[KIND].astype(int), columns[TEXTURE]
    values = np.stack([scene.light for scene in scenes], axis=1).astype(np.float32)
    frame = _light_frame(values[:3])
    shapes = {}
    number = np.zeros_like(owner)
    for k, (make, work_out) in _KINDS.items():
        mine = np.flatnonzero(kind == k)
        number[mine] = np.arange(len(mine))
        fields = work_out(columns[:, mine], frame[..., owner[mine]])
        merged = np.concatenate([field.reshape(prod(field.shape[:-1]), len(mine)) for field in fields])
        shapes[k] = Shapes(make, tensor(merged), [field.shape[:-1] for field in fields])
    masks = [kind == Kind.SKY, kind <= Kind.PLANE, *(kind == k for k in (Kind.BOX, Kind.ELLIPSOID, Kind.CAPSULE))]
    masks += [texture == t for t in range(1, 5)]
    lights = tensor(values[3:, :, None])
    key = torch.tensor([[scene.key] for scene in scenes], device=device)
    return World(
        Balls(owner, kind, number, columns[CENTRE], _radius(kind, columns[HALF])),
        tensor(np.concatenate([columns, np.array(masks, dtype=np.float32)])),
        shapes,
        frame,
        values[11],
        Light(tensor(frame[..., None]), lights[:3], lights[3:6], lights[6], lights[7], key),
    )


def _radius(kind: NDArray[np.int64], half: Array) -> Array:
    """Of a ball about each solid, with something to spare for rounding; the sky and planes are everywhere."""
    exact = np.where(kind == Kind.BOX, np.sqrt((half * half).sum(0)), half.max(0))
    exact = np.where(kind == Kind.CAPSULE, half[0] + half[1], exact)
    radius: Array = np.where(kind <= Kind.PLANE, np.float32(np.inf), exact * np.float32(1.001) + np.float32(0.01))
    return radius


def _light_frame(direction: Array) -> Array:
    """Rows [3, 3, b] of rotations whose third row is the unit vector `direction` [3, b]."""
    x, y, z = direction
    flat = np.sqrt(x * x + y * y)
    nothing = np.zeros_like(x)
    first = np.stack([-y / flat, x / flat, nothing])
    second = np.stack([-z * x / flat, -z * y / flat, flat])
    return np.stack([first, second, direction])
