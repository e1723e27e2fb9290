"""A client's model: one encoder, and one decoder and one head per task."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedhca2.models.config import ModelConfig
from fedhca2.models.decoder import Decoder, DeepLab, Head
from fedhca2.models.encoder import Encoder
from fedhca2.params import Layout, Part, Slot
from fedhca2.seeds import derive

DEEPLAB_WIDTH = 256


class MultiTaskModel(nn.Module):
    """Every parameter belongs to one slot: the encoder, or a task's decoder or head."""

    def __init__(self, config: ModelConfig, channels: Mapping[str, int], size: tuple[int, int]) -> None:
        super().__init__()
        self.encoder = Encoder(config.encoder, size)
        maps = self.encoder.channels
        width = config.decoder_width or (maps[0] if config.decoder == "fcn" else DEEPLAB_WIDTH)
        self.decoders = nn.ModuleDict({task: _decoder(config, maps, width) for task in channels})
        self.heads = nn.ModuleDict({task: Head(width, count) for task, count in channels.items()})

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        """Raw outputs of all tasks at the size of the image."""
        features = self.encoder(image)
        size = image.shape[-2:]
        return {task: apply_head(self.heads[task], decoder(features), size) for task, decoder in self.decoders.items()}

    def slots(self) -> dict[Slot, dict[str, Tensor]]:
        """All tensors by slot: parameters, and running statistics of normalisation layers where there are any."""
        slots: dict[Slot, dict[str, Tensor]] = {}
        for part, task in [("encoder", ""), *(("decoder", task) for task in self.decoders)]:
            module = self.get_submodule(slot_prefix(Slot(part, task)).removesuffix("."))  # type: ignore[arg-type]
            slots[Slot(part, task)] = dict(module.named_parameters())  # type: ignore[arg-type]
            norms = {name: buffer for name, buffer in module.named_buffers() if ".running_" in f".{name}"}
            if norms:
                slots[Slot(f"{part}_norms", task)] = norms  # type: ignore[arg-type]
        return slots | {Slot("head", task): dict(head.named_parameters()) for task, head in self.heads.items()}


def slot_prefix(slot: Slot) -> str:
    """What the names of a slot's parameters begin with in the whole model.

    >>> slot_prefix(Slot("encoder")), slot_prefix(Slot("decoder", "depth"))
    ('encoder.', 'decoders.depth.')
    """
    return f"{slot.part}s.{slot.task}." if slot.task else f"{slot.part}."


def apply_head(head: nn.Module, decoded: Tensor, size: torch.Size) -> Tensor:
    """A task's raw output at this size, from its decoder's features."""
    output: Tensor = head(decoded)
    if output.shape[-2:] == size:
        return output
    return functional.interpolate(output, size=size, mode="bilinear", align_corners=False)


def _decoder(config: ModelConfig, channels: Sequence[int], width: int) -> nn.Module:
    if config.decoder == "deeplab":
        return DeepLab(channels, width, config.encoder.output_stride)
    return Decoder(channels, width)


def layouts(model: MultiTaskModel) -> dict[Slot, Layout]:
    """How each slot's tensors lie in a row."""
    return {slot: Layout.of(tensors) for slot, tensors in model.slots().items()}


def build_model(
    config: ModelConfig,
    channels: Mapping[str, int],
    size: tuple[int, int],
    *,
    seed: int,
    client: str,
    common: frozenset[Part] = frozenset(),
) -> MultiTaskModel:
    """A model whose encoder is the same for every client of an experiment, and whose decoders and heads are its own.

    Decoders or heads in `common` are the same for every client that has the task.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(seed, "encoder"))
        model = MultiTaskModel(config, channels, size)
        for task in channels:
            for part, module in (("decoder", model.decoders[task]), ("head", model.heads[task])):
                torch.manual_seed(derive(seed, part, "" if part in common else client, task))
                for layer in module.modules():
                    if isinstance(layer, (nn.modules.conv._ConvNd, nn.modules.batchnorm._NormBase)):
                        layer.reset_parameters()
    return model
