"""What other programs call an encoder's tensors, and what we call them."""

import re
from collections.abc import Mapping

from torch import Tensor

PREFIXES = ("module.", "model.", "backbone.", "encoder.")
MMSEG_STAGE = re.compile(r"stages\.(\d+)\.(.*)")
MMSEG_WORDS = {"attn.w_msa.": "attn.", "ffn.layers.0.0.": "mlp.fc1.", "ffn.layers.1.": "mlp.fc2."}
DOWNSAMPLE = re.compile(r"layers\.(\d+)\.downsample\.(.*)")


def to_timm(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a backbone under timm's names: from timm, mmseg (UPerNet) or the authors of Swin."""
    found = _without_prefixes(tensors)
    if any("attn.w_msa." in name for name in found):
        found = dict(_from_mmseg(name, tensor) for name, tensor in found.items())
    if any(name.startswith("layers.0.downsample.") for name in found):
        found = {_at_next_stage(name): tensor for name, tensor in found.items()}
    return found


def own_names(name: str) -> tuple[str, ...]:
    """What a tensor of our encoder may be called in timm's names, the best first.

    >>> own_names("body.layers_1.blocks.0.norm1.weight"), own_names("norms.3.bias")
    (('layers_1.blocks.0.norm1.weight', 'layers.1.blocks.0.norm1.weight'), ('norm3.bias', 'norm.bias'))
    """
    part, _, rest = name.partition(".")
    if part == "norms":
        stage, _, rest = rest.partition(".")
        return (f"norm{stage}.{rest}", *([f"norm.{rest}"] if stage == "3" else []))
    return rest, re.sub(r"^([a-z]+)_(\d)", r"\1.\2", rest)


def reordered_merging(tensor: Tensor) -> Tensor:
    """A patch merging's weights [..., 4C] in timm's order of inputs, from mmseg's.

    mmseg unfolds the 2×2 patch, so that an input is 4c + 2y + x; in timm it is (2x + y)·C + c.
    """
    patches = tensor.reshape(*tensor.shape[:-1], -1, 2, 2)
    return patches.transpose(-3, -1).reshape(tensor.shape)


def _without_prefixes(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    found = dict(tensors)
    for prefix in PREFIXES:
        if any(name.startswith(prefix) for name in found):
            found = {name.removeprefix(prefix): value for name, value in found.items() if name.startswith(prefix)}
    return found


def _from_mmseg(name: str, tensor: Tensor) -> tuple[str, Tensor]:
    stage = MMSEG_STAGE.fullmatch(name)
    if not stage:
        return name.replace("patch_embed.projection.", "patch_embed.proj."), tensor
    rest = stage[2]
    if rest.startswith("downsample."):
        tensor = reordered_merging(tensor)
    for theirs, ours in MMSEG_WORDS.items():
        rest = rest.replace(theirs, ours)
    return f"layers.{stage[1]}.{rest}", tensor


def _at_next_stage(name: str) -> str:
    """timm merges patches where a stage begins, the others where the stage before ends."""
    found = DOWNSAMPLE.fullmatch(name)
    return f"layers.{int(found[1]) + 1}.downsample.{found[2]}" if found else name
