"""A user's own encoders, decoders, heads and interactions: classes of torch.nn.Module by import path.

An encoder has `channels`, the widths of its maps, and gives these maps, from fine to coarse, with channels second. A
decoder is made with (channels, width) and turns the maps into features of that width. A head is made with (width,
channels) and turns these features into a task's output. An interaction is made with (tasks, width) and turns the
features of all tasks, by name, into others of the same shapes.
"""

from collections.abc import Mapping, Sequence
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch
from pydantic import PydanticUserError, TypeAdapter, ValidationError
from torch import Tensor, nn

from fedhca2.config import has_boolean_for_number, suggest
from fedhca2.errors import list_faults
from fedhca2.imports import explain_errors, load, parameters
from fedhca2.models.config import ModelConfig, Part
from fedhca2.models.layers import STRIDES

if TYPE_CHECKING:
    from fedhca2.models.multitask import MultiTaskModel


def make(name: str, part: Part, *arguments: Any) -> nn.Module:
    """Make a part from its class with its settings after what it is `given`; raises ValueError if that fails."""
    kind = load(
        part.kind, "a class of torch.nn.Module", lambda value: isinstance(value, type) and issubclass(value, nn.Module)
    )
    settings = _check_settings(f"{name} {part.kind}", part.settings, kind, len(arguments))
    values = ", ".join([*map(repr, arguments), *(f"{key}={value!r}" for key, value in settings.items())])
    with explain_errors(f"{name} {part.kind}", f"expected to be made with ({values})"):
        module = kind(*arguments, **settings)
    widths = getattr(module, "channels", "none")
    are_widths = isinstance(widths, Sequence) and len(widths) > 0 and all(isinstance(width, int) for width in widths)
    if name == "encoder" and not are_widths:
        raise ValueError(f"{name} {part.kind}: expected `channels`, the widths of its maps, got {widths}")
    return module  # type: ignore[no-any-return]


def _check_settings(where: str, settings: Mapping[str, Any], kind: Any, positional: int) -> dict[str, Any]:
    """The settings as its class declares them; raises ValueError if one is unknown, missing, or of another type."""
    declared = parameters(kind, positional)
    takes_any = any(each.kind == each.VAR_KEYWORD for each in signature(kind).parameters.values())
    if not takes_any and (unknown := [key for key in settings if key not in declared]):
        raise ValueError(f"{where}: unknown setting {unknown[0]!r}. {suggest(unknown[0], declared)}")
    if missing := [key for key, (_, default) in declared.items() if default is ... and key not in settings]:
        raise ValueError(f"{where}: expected a setting {missing[0]!r}, got none")
    return {key: _convert(f"{where}: {key}", value, declared.get(key, (Any,))[0]) for key, value in settings.items()}


def _convert(where: str, value: Any, hint: Any) -> Any:
    """The value of a config as a parameter's type, such as a tuple for a list; raises ValueError if it is another."""
    try:
        adapter = TypeAdapter[Any](hint)
    except PydanticUserError:  # a type that no config can hold
        return value
    if has_boolean_for_number(value, hint):
        raise ValueError(f"{where}: expected a number, got {value!r}")
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        raise ValueError(str(list_faults(error, where)[0])) from None


@torch.no_grad()
def check_parts(model: "MultiTaskModel", config: ModelConfig, shape: Sequence[int], outputs: Mapping[str, int]) -> None:
    """Try a model's own parts, or timm's encoder, on inputs of this shape; raises ValueError if one does not fit.

    `outputs` are the channels of its tasks.
    """
    own = config.own_parts
    wrong = not own and (config.encoder.kind == "mlp") != (config.decoder.kind == "mlp")
    if wrong or (len(shape) != 3 and config.encoder.kind == "timm"):
        actual = f"{config.encoder.title} and {config.decoder.kind}"
        expected = f"both mlp, or your own classes, for inputs {_list(shape)}"
        raise ValueError(f"encoder and decoder: expected {expected}, got {actual}")
    model.eval()
    if not own:  # some of timm's take no images of this size
        _try(f"encoder {config.encoder.title}", model.encoder, torch.zeros(1, *shape))
        return
    encoder, inputs, title = model.encoder, torch.zeros(2, *shape), f"encoder {config.encoder.title}"
    if "encoder" in own and encoder.norms is None:  # its maps themselves, before they are projected
        _check_maps(config, _try(title, encoder.body, inputs), encoder.body.channels, shape)  # type: ignore[arg-type]
    maps = _try(title, encoder, inputs)
    if "encoder" in own:
        _check_maps(config, maps, encoder.channels, shape)
    decoded: Mapping[str, Any] = {}
    for task in outputs:
        features = _try(f"decoder {config.decoder.kind}", model.decoders[task], maps)
        if "decoder" in own and (not _is_float(features) or features.ndim < 2 or features.shape[1] != model.width):
            expected = f"features [B, {model.width}, …]"
            raise ValueError(f"decoder {config.decoder.kind}: expected {expected}, got {_show(features)}")
        decoded = {**decoded, task: features}
    if config.interaction and model.interaction is not None:
        decoded = _try_interaction(f"interaction {config.interaction.kind}", model.interaction, decoded)
    for task, channels in outputs.items():
        head = config.head.kind if config.head else f"of task {task!r}"
        output = _try(f"head {head}", model.heads[task], decoded[task])
        expected = f"[B, {channels}, H, W]" if model.tasks[task].output == "map" else f"[B, {channels}]"
        if not _is_float(output) or output.ndim != expected.count(",") + 1 or output.shape[1] != channels:
            raise ValueError(f"head {head}: expected {expected}, got {_show(output)}")


def _try_interaction(name: str, interaction: nn.Module, maps: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The maps after an interaction was tried; raises ValueError unless they have the tasks and shapes from before."""
    result = _try(name, interaction, dict(maps))
    expected = {task: _show(each) for task, each in maps.items()}
    actual = {task: _show(each) for task, each in result.items()} if isinstance(result, Mapping) else _show(result)
    if actual != expected:
        raise ValueError(f"{name}: expected maps {expected}, got {actual}")
    return result  # type: ignore[no-any-return]


def _try(name: str, module: nn.Module, *inputs: Any) -> Any:
    with explain_errors(name, "expected to run on a test input"):
        return module(*inputs)


def _check_maps(config: ModelConfig, maps: Any, channels: Sequence[int], shape: Sequence[int]) -> None:
    """Built-in decoders need maps of an image at the usual strides; others get whatever the encoder gives."""
    expected: list[tuple[int, ...]] = [(2, width) for width in channels]
    if len(shape) == 3 and not config.decoder.is_own:
        sizes = [tuple(-(-side // stride) for side in shape[1:]) for stride in STRIDES]
        expected = [(2, width, *size) for width, size in zip(channels, sizes, strict=False)]
    listed = isinstance(maps, Sequence) and all(map(_is_float, maps))
    shapes = [tuple(each.shape) for each in maps] if listed else []
    if [each[: len(expected[0])] for each in shapes] != expected or (len(shape) == 3 and len(shapes) != len(channels)):
        single = f"a tensor {_show(maps)}" if _is_float(maps) else _show(maps)
        actual = ", ".join(map(_show, maps)) if listed else single
        needed = ", ".join(_list(each) + ("" if len(each) > 2 else "×…") for each in expected)
        raise ValueError(f"encoder {config.encoder.kind}: expected a list of maps {needed}, got {actual}")


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _list(shape: Sequence[int]) -> str:
    return "×".join(map(str, shape))


def _show(value: Any) -> str:
    if isinstance(value, Tensor):
        return _list(value.shape) + ("" if value.is_floating_point() else f" of {value.dtype}")
    return type(value).__name__
