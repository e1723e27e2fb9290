"""A model's forward pass for a GPU: the same numbers within rounding, with fewer and better kernels."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import torch
from timm.layers.patch_embed import PatchEmbed
from timm.models.swin_transformer import PatchMerging, SwinTransformerBlock, WindowAttention
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from fedhca2.compiling import ALIGNMENT, SETTINGS, constant
from fedhca2.models.layers import FeatureNorms
from fedhca2.models.multitask import Head, MultiTaskModel

NEVER = -1e4  # added to the score of a padded key
REST = "rest"


class TabledAttention(WindowAttention):
    """timm's window attention; the gradient of its table of biases is one product instead of a sort."""

    relative_position_index: Tensor

    def _get_rel_pos_bias(self) -> Tensor:
        """The bias [1, heads, positions, positions] of each pair of positions, by their offset."""
        if torch.compiler.is_compiling():  # torch keeps no compiled code with functions of one's own
            return super()._get_rel_pos_bias()
        table, index = self.relative_position_bias_table, self.relative_position_index
        biases: Tensor = _TableLookup.apply(table, index.view(-1), _pairs_of_offset(index, len(table)))
        return biases.view(*index.shape, -1).permute(2, 0, 1).contiguous()[None]


@constant
def _pairs_of_offset(index: Tensor, offsets: int) -> Tensor:
    """Which pairs of positions [offsets, pairs] have each offset."""
    return (index.view(-1) == torch.arange(offsets, device=index.device)[:, None]).float()


class _TableLookup(torch.autograd.Function):
    """The rows of a table with these numbers; `pairs` says which of them are from each row."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, numbers: Tensor, pairs: Tensor) -> Tensor:
        ctx.save_for_backward(pairs)
        return table[numbers]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (pairs,) = ctx.saved_tensors
        with torch.autocast(gradient.device.type, enabled=False):
            return pairs.to(gradient.dtype) @ gradient, None, None


class AlignedAttention(TabledAttention):
    """This attention with windows padded to a multiple of 8: 7×7 windows have 49 positions, which is slow."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend within windows [W, positions, channels]; `mask` is [windows of an image, positions, positions]."""
        windows, positions, _ = x.shape
        missing = -positions % ALIGNMENT
        padded = positions + missing
        q, k, v = self.qkv(x).reshape(windows, positions, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        q, k, v = (functional.pad(each, (0, 0, 0, missing)) for each in (q * self.scale, k, v))
        bias = self._get_rel_pos_bias()
        if mask is not None:
            bias = bias + mask[:, None]
        bias = functional.pad(functional.pad(bias, (0, missing), value=NEVER), (0, 0, 0, missing))
        scores = (q @ k.transpose(-2, -1)).view(-1, *bias.shape) + bias
        attention = scores.softmax(dim=-1).to(v.dtype).view(windows, self.num_heads, padded, padded)
        attended: Tensor = (attention @ v)[:, :, :positions].transpose(1, 2).reshape(windows, positions, -1)
        return self.proj_drop(self.proj(attended))  # type: ignore[no-any-return]


class FusedAttention(TabledAttention):
    """This attention with one kernel between the projections."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend within windows [W, positions, channels]; `mask` is [windows of an image, positions, positions]."""
        from fedhca2.models.window_attention import side, window_attention

        missing = side(x.shape[1]) - x.shape[1]
        bias = functional.pad(self._get_rel_pos_bias()[0], (0, missing), value=NEVER)
        bias = functional.pad(bias, (0, 0, 0, missing))
        if mask is not None:
            mask = functional.pad(mask, (0, missing, 0, missing)).to(torch.bfloat16)  # its values are exact
        attended = window_attention(self.qkv(x), bias, mask, self.scale)
        return self.proj_drop(self.proj(attended))  # type: ignore[no-any-return]


class AlignedConvolution(nn.Conv2d):
    """A 1×1 convolution with its outputs padded to a multiple of 8: an odd number of classes is slow."""

    def forward(self, input: Tensor) -> Tensor:
        """The outputs without the padding."""
        missing = -self.out_channels % ALIGNMENT
        weight = functional.pad(self.weight, (0, 0, 0, 0, 0, 0, 0, missing))
        bias = None if self.bias is None else functional.pad(self.bias, (0, missing))
        return functional.conv2d(input, weight, bias)[:, : self.out_channels]


def use_fast_layers(model: nn.Module, *, compile: bool) -> None:
    """Replace layers of a model on a GPU, in place, by quicker ones; some are quicker only if they are compiled."""
    for module in model.modules():
        if type(module) is WindowAttention:
            module.__class__ = _attention(module)
        elif compile and isinstance(module, Head):
            module[-1].__class__ = AlignedConvolution


def _attention(module: WindowAttention) -> type[WindowAttention]:
    """How to compute this attention: windows of an odd size are padded."""
    if not module.window_area % ALIGNMENT or module.attn_drop.p:
        return TabledAttention
    device, depth = module.relative_position_bias_table.device, module.qkv.out_features // 3 // module.num_heads
    fits = module.window_area <= 64 and depth in (16, 32, 64)  # one kernel can hold it
    able = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0) and find_spec("triton")
    return FusedAttention if fits and able else AlignedAttention


class WeightsCastTogether(TorchFunctionMode):
    """Casts all trained weights for one forward pass with few kernels; autocast takes one for each weight.

    The layers that autocast would cast weights for get these copies, all else the weights themselves, and so does a
    part of a model that switches autocast off. So values and gradients are autocast's, bit for bit.
    """

    LAYERS = frozenset([functional.linear, functional.conv1d, functional.conv2d, functional.conv3d])
    LAYERS |= {functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d}

    def __init__(self, parameters: Iterable[nn.Parameter], dtype: torch.dtype) -> None:
        super().__init__()
        weights = [parameter for parameter in parameters if parameter.requires_grad and parameter.dtype.itemsize == 4]
        copies = _CastTogether.apply(dtype, *weights) if weights else ()
        self.copies = dict(zip(weights, copies, strict=True))
        self.device = weights[0].device.type if weights else "cpu"

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        arguments: Sequence[Any] = (),
        options: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call a function of torch, with copies where it is one of these layers."""
        options = options or {}
        if function in self.LAYERS and torch.is_autocast_enabled(self.device):
            arguments = [self._copy(value) for value in arguments]
            options = {name: self._copy(value) for name, value in options.items()}
        return function(*arguments, **options)

    def _copy(self, value: Any) -> Any:
        return self.copies.get(value, value) if isinstance(value, nn.Parameter) else value


class _CastTogether(torch.autograd.Function):
    """Casts many tensors with few kernels, forth and back."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *values: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        return tuple(_cast([*values], dtype))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        present = [gradient for gradient in gradients if gradient is not None]
        cast = iter(_cast(present, torch.float32))
        return None, *(None if gradient is None else next(cast) for gradient in gradients)


def _cast(values: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    copies = [torch.empty_like(value, dtype=dtype) for value in values]
    torch._foreach_copy_(copies, values)
    return copies


def compile_parts(model: MultiTaskModel, part: str | None = None) -> None:
    """Compile a model part by part, in place, or only one of the `parts`: equal blocks share their code."""
    # Compiled forms of one function: blocks × stages × sizes.
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 128)
    torch._dynamo.config.run_gc_after_compile = False  # nothing of it is garbage
    for name, module in _parts(model):
        if part in (None, name):
            module.compile(**SETTINGS)


def parts(model: MultiTaskModel) -> list[str]:
    """The parts that can be compiled separately: the stages of a Swin transformer, or the encoder, and the rest."""
    return list(dict.fromkeys(name for name, _ in _parts(model)))


def _parts(model: MultiTaskModel) -> Iterator[tuple[str, nn.Module]]:
    blocks = [m for m in model.encoder.named_modules() if isinstance(m[1], (SwinTransformerBlock, PatchMerging))]
    for name, module in blocks:
        shifted = any(getattr(module, "shift_size", ()))
        yield f"{name.split('.')[1]}{' shifted' if shifted else ''}", module  # body.layers_2.blocks.0
    if not blocks:
        yield "encoder", model.encoder
    others = [module for module in model.encoder.modules() if isinstance(module, (PatchEmbed, FeatureNorms))]
    for module in (*(others if blocks else ()), *model.decoders.values()):
        yield REST, module
