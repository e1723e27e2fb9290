"""Several scenes as one set of tensors."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedhca2.data.scenes import coefficients
from fedhca2.data.scenes.cast import Solids
from fedhca2.data.scenes.coefficients import Array, Box, Capsule, Ellipsoid, Plane
from fedhca2.data.scenes.look import Light
from fedhca2.data.scenes.scene import Scene
from fedhca2.data.scenes.solids import AXES, CENTRE, HALF, KIND, Kind

_UNTURNED = np.eye(3).reshape(9)


def pack(scenes: list[Scene], device: torch.device) -> tuple[Solids, Light, Tensor]:
    """Solids, light and focal lengths of the scenes, each kind of solid padded to the most that any of them has."""
    counts = np.stack([np.bincount(scene.solids[:, KIND].astype(int), minlength=len(Kind)) for scene in scenes])
    starts = tuple(np.cumsum([0, *counts.max(0)]).tolist())
    table = np.zeros((len(scenes), starts[-1], scenes[0].solids.shape[1]))
    # Padding: a speck far behind the camera.
    table[:, :, CENTRE] = (0.0, 0.0, 1e5)
    table[:, :, AXES] = _UNTURNED
    table[:, :, HALF] = 1e-3
    for padded, scene, count in zip(table, scenes, counts, strict=True):
        kind = scene.solids[:, KIND]
        for k in Kind:
            padded[starts[k] : starts[k] + count[k]] = scene.solids[kind == k]
    columns = np.ascontiguousarray(table.transpose(2, 0, 1), dtype=np.float32)
    values = np.stack([scene.light for scene in scenes], axis=1).astype(np.float32)
    frame = _light_frame(values[:3])

    def tensor(array: Array) -> Tensor:
        return torch.from_numpy(array).to(device)

    def fields(kind: Kind, make: Callable[[Array, Array], tuple[Array, ...]]) -> Any:
        found = make(columns[:, :, starts[kind] : starts[kind + 1]], frame[..., None])
        return [tensor(array)[..., None] for array in found]

    solids = Solids(
        tensor(columns),
        starts,
        Plane(*fields(Kind.PLANE, coefficients.plane)),
        Box(*fields(Kind.BOX, coefficients.box)),
        Ellipsoid(*fields(Kind.ELLIPSOID, coefficients.ellipsoid)),
        Capsule(*fields(Kind.CAPSULE, coefficients.capsule)),
    )
    lights = tensor(values[3:, :, None])
    key = torch.tensor([[scene.key] for scene in scenes], device=device)
    return solids, Light(tensor(frame[..., None]), lights[:3], lights[3:6], lights[6], lights[7], key), lights[8]


def _light_frame(direction: Array) -> Array:
    """Rows [3, 3, b] of rotations whose third row is the unit vector `direction` [3, b]."""
    x, y, z = direction
    flat = np.sqrt(x * x + y * y)
    nothing = np.zeros_like(x)
    first = np.stack([-y / flat, x / flat, nothing])
    second = np.stack([-z * x / flat, -z * y / flat, flat])
    return np.stack([first, second, direction])
