"""A user's own encoders, decoders and heads: classes of torch.nn.Module by import path.

An encoder has `channels`, the widths of its maps, and gives these maps, from fine to coarse, with channels second. A
decoder is made with (channels, width) and turns the maps into features of that width. A head is made with (width,
channels) and turns these features into a task's output.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fedhca2.imports import load, told
from fedhca2.models.config import ModelConfig, Part
from fedhca2.models.features import STRIDES
from fedhca2.tasks import TASKS

if TYPE_CHECKING:
    from fedhca2.models.multitask import MultiTaskModel


def make(name: str, part: Part, *given: Any) -> nn.Module:
    """Make a part from its class; raises ValueError if that is not possible."""
    made_by = load(part.kind, "a class of torch.nn.Module", _is_module)
    try:
        made = made_by(*given, **part.settings)
    except Exception as error:  # it may raise anything
        wanted = ", ".join(f"{key}={value!r}" for key, value in part.settings.items()) or "no settings"
        raise ValueError(f"{name} {part.kind} should take {wanted}, found {told(error)}") from error
    if name == "encoder" and not _are_widths(getattr(made, "channels", None)):
        found = getattr(made, "channels", "none")
        raise ValueError(f"{name} {part.kind} should have `channels`, the widths of its maps, found {found}")
    return made  # type: ignore[no-any-return]


def _is_module(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, nn.Module)


def _are_widths(value: Any) -> bool:
    return isinstance(value, Sequence) and len(value) > 0 and all(isinstance(width, int) for width in value)


_KNOWN = set[tuple[str, tuple[int, ...]]]()  # timm's encoders that were tried, with the shape of their input


@torch.no_grad()
def check_parts(model: "MultiTaskModel", config: ModelConfig, shape: Sequence[int], outputs: Mapping[str, int]) -> None:
    """Try a model's own parts, or timm's encoder, on inputs of this shape; raises ValueError if one does not fit.

    `outputs` are the channels of its tasks.
    """
    own = config.own_parts
    if "encoder" not in own and len(shape) != 3:
        raise ValueError(
            f"encoder should be a class of your own for inputs {_listed(shape)}, found {config.encoder.name}"
        )
    model.eval()
    if not own:
        kind = (config.encoder.model_dump_json(), tuple(shape))
        if kind not in _KNOWN:  # some of timm's take no images of this size
            _tried(f"encoder {config.encoder.title}", model.encoder, torch.zeros(1, *shape))
            _KNOWN.add(kind)
        return
    maps = _tried(f"encoder {config.encoder.title}", model.encoder, torch.zeros(2, *shape))
    if "encoder" in own:
        _check_maps(config, maps, model.encoder.channels, shape)
    for task, channels in outputs.items():
        features = _tried(f"decoder {config.decoder.kind}", model.decoders[task], maps)
        if "decoder" in own and (not _is_float(features) or features.ndim < 2 or features.shape[1] != model.width):
            wanted = f"features [B, {model.width}, …]"
            raise ValueError(f"decoder {config.decoder.kind} should give {wanted}, found {_shown(features)}")
        head = config.head.kind if config.head else f"of task {task!r}"
        output = _tried(f"head {head}", model.heads[task], features)
        wanted = f"[B, {channels}, H, W]" if TASKS[task].output == "map" else f"[B, {channels}]"
        if not _is_float(output) or output.ndim != wanted.count(",") + 1 or output.shape[1] != channels:
            raise ValueError(f"head {head} should give {wanted}, found {_shown(output)}")


def _tried(name: str, module: nn.Module, *inputs: Any) -> Any:
    try:
        return module(*inputs)
    except Exception as error:  # it may raise anything
        raise ValueError(f"{name} should accept what it gets, found {told(error)}") from error


def _check_maps(config: ModelConfig, maps: Any, channels: Sequence[int], shape: Sequence[int]) -> None:
    """Built-in decoders need maps of an image at the usual strides; others get whatever the encoder gives."""
    wanted: list[tuple[int, ...]] = [(2, width) for width in channels]
    if len(shape) == 3 and not config.decoder.is_own:
        sizes = [tuple(-(-side // stride) for side in shape[1:]) for stride in STRIDES]
        wanted = [(2, width, *size) for width, size in zip(channels, sizes, strict=False)]
    listed = isinstance(maps, Sequence) and all(map(_is_float, maps))
    shapes = [tuple(each.shape) for each in maps] if listed else []
    if [each[: len(wanted[0])] for each in shapes] != wanted or (len(shape) == 3 and len(shapes) != len(channels)):
        shown = ", ".join(map(_shown, maps)) if listed else _shown(maps)
        needed = ", ".join(_listed(each) + ("" if len(each) > 2 else "×…") for each in wanted)
        raise ValueError(f"encoder {config.encoder.kind} should give a list of maps {needed}, found {shown}")


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _listed(shape: Sequence[int]) -> str:
    return "×".join(map(str, shape))


def _shown(value: Any) -> str:
    if isinstance(value, Tensor):
        return _listed(value.shape) + ("" if value.is_floating_point() else f" of {value.dtype}")
    return type(value).__name__
