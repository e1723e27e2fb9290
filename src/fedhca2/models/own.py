"""Encoders, decoders and heads of a user's own: classes of torch.nn.Module by import path.

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


def _is_module(found: Any) -> bool:
    return isinstance(found, type) and issubclass(found, nn.Module)


def _are_widths(found: Any) -> bool:
    return isinstance(found, Sequence) and len(found) > 0 and all(isinstance(width, int) for width in found)


@torch.no_grad()
def check_parts(model: "MultiTaskModel", config: ModelConfig, shape: Sequence[int], outputs: Mapping[str, int]) -> None:
    """Try a model's own parts on inputs of this shape; raises ValueError if one gives something else than it should.

    `outputs` are the channels of its tasks.
    """
    own = config.own_parts
    if not own:
        return
    model.eval()
    maps = _tried("encoder", config.encoder, model.encoder, torch.zeros(2, *shape))
    if "encoder" in own:
        _check_maps(config, maps, model.encoder.channels, shape)
    for task, channels in outputs.items():
        features = _tried("decoder", config.decoder, model.decoders[task], maps)
        if "decoder" in own and (not _is_float(features) or features.ndim < 2 or features.shape[1] != model.width):
            wanted = f"features [B, {model.width}, …]"
            raise ValueError(f"decoder {config.decoder.kind} should give {wanted}, found {_shown(features)}")
        output = _tried("head", config.head or config.decoder, model.heads[task], features)
        dimensions = 4 if TASKS[task].output == "map" else 2
        if not _is_float(output) or output.ndim != dimensions or output.shape[1] != channels:
            wanted = f"[B, {channels}, H, W]" if dimensions == 4 else f"[B, {channels}]"
            part = "head" if "head" in own else "decoder"
            kind = own[part].kind if part in own else config.encoder.kind
            raise ValueError(f"{part} {kind} should lead to {wanted} for task {task!r}, found {_shown(output)}")


def _tried(name: str, part: Part, module: nn.Module, *inputs: Any) -> Any:
    try:
        return module(*inputs)
    except Exception as error:  # it may raise anything
        raise ValueError(f"{name} {part.kind} should accept what it gets, found {told(error)}") from error


def _check_maps(config: ModelConfig, maps: Any, channels: Sequence[int], shape: Sequence[int]) -> None:
    """Built-in decoders need maps of an image at the usual strides; others get whatever the encoder gives."""
    wanted: list[tuple[int, ...]] = [(2, width) for width in channels]
    if len(shape) == 3 and not config.decoder.is_own:
        sizes = [tuple(-(-side // stride) for side in shape[1:]) for stride in STRIDES]
        wanted = [(2, width, *size) for width, size in zip(channels, sizes, strict=False)]
    listed = isinstance(maps, Sequence) and all(map(_is_float, maps))
    found = [tuple(each.shape) for each in maps] if listed else []
    if [each[: len(wanted[0])] for each in found] != wanted or (len(shape) == 3 and len(found) != len(channels)):
        shown = ", ".join(map(_shown, maps)) if listed else _shown(maps)
        needed = ", ".join("×".join(map(str, each)) + ("" if len(each) > 2 else "×…") for each in wanted)
        raise ValueError(f"encoder {config.encoder.kind} should give a list of maps {needed}, found {shown}")


def _is_float(found: Any) -> bool:
    return isinstance(found, Tensor) and found.is_floating_point()


def _shown(found: Any) -> str:
    if isinstance(found, Tensor):
        return "×".join(map(str, found.shape)) + ("" if found.is_floating_point() else f" of {found.dtype}")
    return type(found).__name__
