"""A client's model: one encoder, and one decoder and one head per task."""

from collections.abc import Hashable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedhca2.models.config import ModelConfig
from fedhca2.models.encoder import Encoder
from fedhca2.models.layers import STRIDES, GivenDropout, GivenDropPath, VectorDecoder, resample
from fedhca2.models.own import make
from fedhca2.params import ENCODER, Part, Slot
from fedhca2.seeds import derive
from fedhca2.tasks import TASKS, TaskSet


class MultiTaskModel(nn.Module):
    """Every parameter belongs to one slot: the encoder, or a task's decoder or head.

    Those of an `interaction`, and those named in `stays`, belong to none, since they stay with the client.
    """

    def __init__(
        self, config: ModelConfig, channels: Mapping[str, int], size: Sequence[int], tasks: TaskSet = TASKS
    ) -> None:
        super().__init__()
        self.tasks = tasks
        self.encoder = Encoder(config.encoder, size, config.feature_width)
        maps = self.encoder.channels
        self.width = config.decoder_width or (256 if config.decoder.kind == "deeplab" else maps[0])
        self.decoders = nn.ModuleDict({task: _decoder(config, maps, self.width) for task in channels})
        self.heads = nn.ModuleDict({task: self._head(config, task, count) for task, count in channels.items()})
        self.interaction = build_interaction(config, list(channels), self.width)
        dropouts = [module for module in self.decoders.modules() if isinstance(module, GivenDropout)]
        self.drops: list[GivenDropPath | GivenDropout] = [*self.encoder.drop_paths, *dropouts]
        shapes = tuple((name, buffer.shape) for name, buffer in self.named_buffers())
        self.stays = frozenset(f"encoder.{name}" for name in self.encoder.stays)  # trained, but in no slot
        self.kind: Hashable = (repr(self), shapes, tasks)  # the same for models that differ only in values

    def _head(self, config: ModelConfig, task: str, channels: int) -> nn.Module:
        if config.head and config.head.is_own:
            return make("head", config.head, self.width, channels)
        if self.tasks[task].output == "vector":
            kinds = (nn.Linear, ScaledLinear) if config.decoder.kind == "mlp" else (VectorHead, ScaledHead)
            return kinds[self.tasks[task].standardised](self.width, channels)
        usual = "linear" if config.decoder.kind == "deeplab" else "transposed"
        kind = config.head.kind if config.head else usual
        return nn.Conv2d(self.width, channels, kernel_size=1) if kind == "linear" else Head(self.width, channels)

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        """Compute raw outputs of all tasks at the size of the image."""
        decoded = self.decode(self.encoder(image))
        return {task: apply_head(head, decoded[task], image.shape[-2:]) for task, head in self.heads.items()}

    def decode(self, features: Sequence[Tensor]) -> Mapping[str, Tensor]:
        """Compute what the heads get, by task, from the encoder's maps."""
        decoded = {task: decoder(features) for task, decoder in self.decoders.items()}
        return decoded if self.interaction is None else self.interaction(decoded)

    @property
    def fixed(self) -> dict[str, Tensor]:
        """The tensors of a frozen backbone: they never change, so they are neither sent nor saved."""
        names = {f"encoder.{name}" for name in self.encoder.fixed}
        return {name: value for name, value in self.state_dict().items() if name in names} if names else {}

    def slots(self) -> dict[Slot, dict[str, Tensor]]:
        """All tensors by slot, except those that are fixed or stay: parameters, and running statistics of norms."""
        local = self.stays | {f"encoder.{name}" for name in self.encoder.fixed}
        parts: dict[Slot, nn.Module] = {ENCODER: self.encoder}
        parts |= {Slot("decoder", task): decoder for task, decoder in self.decoders.items()}
        parts |= {Slot("head", task): head for task, head in self.heads.items()}
        slots: dict[Slot, dict[str, Tensor]] = {}
        for slot, module in parts.items():
            prefix = slot_prefix(slot)
            parameters = {name: value for name, value in module.named_parameters() if prefix + name not in local}
            norms = {name: value for name, value in module.named_buffers() if ".running_" in f".{name}"}
            norms = {name: value for name, value in norms.items() if prefix + name not in local}
            if parameters or slot.part == "head":
                slots[slot] = {**parameters}
            if norms and slot.statistics:
                slots[slot.statistics] = norms
        return slots

    def keep_norms(self) -> None:
        """From now on, parameters of normalisation layers stay with the client."""
        norms = [(name, layer) for name, layer in self.named_modules() if "norm" in type(layer).__name__.lower()]
        self.stays |= {f"{name}.{inner}" for name, layer in norms for inner, _ in layer.named_parameters(recurse=False)}


def slot_prefix(slot: Slot) -> str:
    """The prefix of a slot's parameter names in the whole model.

    >>> slot_prefix(Slot("encoder")), slot_prefix(Slot("decoder", "depth"))
    ('encoder.', 'decoders.depth.')
    """
    return f"{slot.part}s.{slot.task}." if slot.task else f"{slot.part}."


def apply_head(head: nn.Module, decoded: Tensor, size: torch.Size) -> Tensor:
    """Compute a task's raw output at this size from its decoder's features."""
    output: Tensor = head(decoded)
    if output.ndim == 2 or output.shape[-2:] == size:  # a vector, or a map of the right size
        return output
    return functional.interpolate(output, size=size, mode="bilinear", align_corners=False)


def _decoder(config: ModelConfig, channels: Sequence[int], width: int) -> nn.Module:
    if config.decoder.is_own:
        return make("decoder", config.decoder, channels, width)
    if config.decoder.kind == "deeplab":
        return DeepLab(channels, width, config.encoder.output_stride)
    return (VectorDecoder if config.decoder.kind == "mlp" else Decoder)(channels, width)


def fingerprint(model: MultiTaskModel) -> str:
    """A digest of a frozen backbone; empty if there is none."""
    fixed = sorted(model.fixed.items())
    digest = blake2b(digest_size=16)
    for name, tensor in fixed:
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest() if fixed else ""


def build_model(
    config: ModelConfig,
    channels: Mapping[str, int],
    size: Sequence[int],
    *,
    seed: int,
    client: str,
    tasks: TaskSet = TASKS,
) -> MultiTaskModel:
    """Build a model. Encoders of the same settings start equal; every client has its own decoders and heads.

    Decoders or heads in `common_start` are the same for every client that has the task.
    """
    model = common_model(config, channels, size, seed=seed, tasks=tasks)
    draw_own_parts(model, seed=seed, client=client, common=frozenset(config.common_start))
    return model


def common_model(
    config: ModelConfig, channels: Mapping[str, int], size: Sequence[int], *, seed: int, tasks: TaskSet = TASKS
) -> MultiTaskModel:
    """The model that clients of these settings have before each draws its own decoders and heads."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive(seed, "encoder"))  # torch.manual_seed would seed GPUs too
        return MultiTaskModel(config, channels, size, tasks)


def draw_own_parts(model: MultiTaskModel, *, seed: int, client: str, common: frozenset[Part]) -> None:
    """Draw a client's own decoders, heads and interaction.

    Uses torch's only generator, so nothing else may draw meanwhile.
    """
    with torch.random.fork_rng(devices=[]):
        for task in model.decoders:
            for part, module in (("decoder", model.decoders[task]), ("head", model.heads[task])):
                _draw(module, derive(seed, part, "" if part in common else client, task))
        if model.interaction is not None:
            _draw(model.interaction, derive(seed, "interaction", client))


def _draw(module: nn.Module, seed: int) -> None:
    torch.default_generator.manual_seed(seed)
    for layer in module.modules():
        if reset := getattr(layer, "reset_parameters", None):
            reset()


class Decoder(nn.Module):
    """The papers' simple FCN: its six layers are the four projections, the fusing convolution and its BatchNorm.

    Interpolation and a 1×1 convolution commute: each map is fused at its own size, then upsampled and added.
    """

    def __init__(self, channels: Sequence[int], width: int) -> None:
        super().__init__()
        self.projections = nn.ModuleList(nn.Conv2d(c, width, kernel_size=1) for c in channels)
        self.fuse = nn.Conv2d(len(channels) * width, width, kernel_size=1)
        self.norm = nn.BatchNorm2d(width)

    def forward(self, features: Sequence[Tensor]) -> Tensor:
        """Features of the task at the size of the finest map."""
        weights = torch.split(self.fuse.weight, self.fuse.out_channels, dim=1)
        pairs = zip(self.projections, features, weights, strict=True)
        fused, *others = [functional.conv2d(project(feature), weight) for project, feature, weight in pairs]
        for maps in others:
            fused = fused + resample(maps, fused.shape[-2:])
        if self.fuse.bias is not None:
            fused = fused + self.fuse.bias[:, None, None]
        return functional.leaky_relu(self.norm(fused), negative_slope=0.01)


class DeepLab(nn.Module):
    """MaT-FL's decoder: the coarsest map at five scales, then dropout and one more convolution.

    The scales are the map itself, three dilated convolutions of it, and its mean.
    """

    def __init__(self, channels: Sequence[int], width: int, stride: int) -> None:
        super().__init__()
        maps = channels[-1]
        rates = [96 * scale // stride for scale in (1, 2, 3)]  # the same field of view at every output stride
        self.scales = nn.ModuleList(
            [
                _normalised(maps, width, 1),
                *(_normalised(maps, width, 3, dilation=rate) for rate in rates),
                nn.Sequential(nn.AdaptiveAvgPool2d(1), _normalised(maps, width, 1)),
            ]
        )
        self.fuse = _normalised(len(self.scales) * width, width, 1)
        self.dropout = GivenDropout(0.5)
        self.refine = _normalised(width, width, 3)

    def forward(self, features: Sequence[Tensor]) -> Tensor:
        """Features of the task at the size of the coarsest map."""
        coarse = features[-1]
        *maps, mean = [scale(coarse) for scale in self.scales]
        fused = self.fuse(torch.cat([*maps, mean.expand_as(maps[0])], dim=1))
        refined: Tensor = self.refine(self.dropout(fused))
        return refined


def _normalised(inputs: int, outputs: int, kernel: int, dilation: int = 1) -> nn.Sequential:
    """A convolution without a bias that keeps the size, a BatchNorm and a ReLU."""
    padding = dilation * (kernel // 2)
    convolution = nn.Conv2d(inputs, outputs, kernel, padding=padding, dilation=dilation, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU())


class VectorHead(nn.Sequential):
    """Maps [B, width, H/4, W/4] to [B, channels]: the mean over the image, and a linear layer."""

    def __init__(self, width: int, channels: int) -> None:
        super().__init__(nn.AdaptiveAvgPool2d(1), nn.Conv2d(width, channels, kernel_size=1), nn.Flatten())


class Scaled(nn.Module):
    """A vector head that answers in the unit of its labels, and learns from standardised ones.

    Their mean and deviation are a client's own: they are saved with its model, and never sent.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, width: int, channels: int) -> None:
        super().__init__(width, channels)
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("deviation", torch.ones(channels))
        self.register_load_state_dict_pre_hook(_unscaled_before)  # type: ignore[no-untyped-call]

    def forward(self, input: Tensor) -> Tensor:
        """The values in the labels' unit, in full precision."""
        values: Tensor = super().forward(input)
        return values.float() * self.deviation + self.mean

    def standardised(self, values: Tensor) -> Tensor:
        """Values of mean 0 and deviation 1 over the training labels."""
        return (values - self.mean) / self.deviation


class ScaledHead(Scaled, VectorHead):
    """A scaled head for maps of features."""


class ScaledLinear(Scaled, nn.Linear):
    """A scaled head for vectors of features."""


def _unscaled_before(head: nn.Module, state: dict[str, Any], prefix: str, *_: object) -> None:
    """Models of earlier versions have no mean and deviation, and answer as they are."""
    for name, usual in (("mean", 0.0), ("deviation", 1.0)):
        state.setdefault(prefix + name, torch.full_like(getattr(head, name), usual))


class Head(nn.Sequential):
    """Maps [B, width, H/4, W/4] to [B, channels, H, W]."""

    def __init__(self, width: int, channels: int) -> None:
        super().__init__(
            nn.ConvTranspose2d(width, width // 2, kernel_size=2, stride=2),
            nn.ConvTranspose2d(width // 2, width // 4, kernel_size=2, stride=2),
            nn.Conv2d(width // 4, channels, kernel_size=1),
        )


def build_interaction(config: ModelConfig, tasks: Sequence[str], width: int) -> nn.Module | None:
    """The module for these tasks' maps of this width; None if the config has none, or one task has nobody to ask."""
    if config.interaction is None or len(tasks) < 2:
        return None
    if config.interaction.is_own:
        return make("interaction", config.interaction, tuple(tasks), width)
    is_coarse = config.decoder.kind == "deeplab"  # other decoders give maps of the finest stride
    return TaskAttention(tasks, width, 1 if is_coarse else config.encoder.output_stride // STRIDES[0])


class TaskAttention(nn.Module):
    """Positions of all tasks' maps, averaged to the encoder's coarsest stride, attend to each other.

    What they gather is projected, upsampled and added. The projection starts at zero, so the model starts as without.
    """

    def __init__(self, tasks: Sequence[str], width: int, reduction: int, heads: int = 4) -> None:
        """`reduction` is how many times coarser maps become; raises ValueError if the heads cannot share the width."""
        super().__init__()
        if width % heads:
            raise ValueError(f"interaction cross_attention: expected maps of a width that {heads} divides, got {width}")
        self.tasks, self.reduction, self.heads = tuple(tasks), reduction, heads
        self.pool = nn.AvgPool2d(reduction, ceil_mode=True, count_include_pad=False)
        self.norm = nn.LayerNorm(width)
        self.names = nn.Embedding(len(tasks), width)  # tells tasks apart
        self.qkv = nn.Linear(width, 3 * width)
        self.project = _FromZero(width, width)

    def forward(self, maps: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Each task's map [B, width, H, W], plus what it gathered from all of them; raises ValueError for others."""
        stacked = torch.stack([maps[task] for task in self.tasks], dim=1)
        if stacked.ndim != 5:
            raise ValueError(f"expected maps [B, width, H, W] of all tasks, got {tuple(maps[self.tasks[0]].shape)}")
        coarse = self.pool(stacked.flatten(0, 1))
        tokens = self.norm(coarse.flatten(2).transpose(1, 2)).unflatten(0, stacked.shape[:2])
        tokens = (tokens + self.names.weight[:, None]).flatten(1, 2)  # [B, tasks × positions, width]
        q, k, v = self.qkv(tokens).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        gathered = self.project(attended).reshape(*coarse.shape[:1], -1, coarse.shape[1]).transpose(1, 2)
        added = resample(gathered.reshape(coarse.shape), stacked.shape[-2:], 1 / self.reduction)
        gathered_by_task = zip(self.tasks, added.view_as(stacked).unbind(1), strict=True)
        return {task: maps[task] + each for task, each in gathered_by_task}

    def extra_repr(self) -> str:
        """What distinguishes its kind from others with parameters of the same shapes."""
        return f"{', '.join(self.tasks)}, heads={self.heads}"


class _FromZero(nn.Linear):
    """A linear layer that starts at zero, also when a client draws its own."""

    def reset_parameters(self) -> None:
        """Fill it with zeros."""
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)
