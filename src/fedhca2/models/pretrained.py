"""Loading pre-trained encoders, and other programs' names for their tensors."""

import re
import warnings
from collections.abc import Mapping
from functools import lru_cache
from hashlib import file_digest
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from time import time_ns

import timm
import torch
from safetensors.torch import load as load_bytes
from torch import Tensor, nn

from fedhca2.imports import explain_errors

NAMED = ("none", "scenes", "timm")


def load_weights(encoder: nn.Module, name: str, source: str) -> None:
    """Load pre-trained values into an encoder, under our own names (as in a run's model), timm's or mmseg's.

    A missing value is an error, with one exception: classifiers lack the norms that a Swin encoder puts on its first
    three maps. These then keep their initial values and only normalise.
    """
    tensors = read_weights(name, source)
    own = encoder.state_dict()
    if not set(own) <= set(tensors):
        tensors = _rename(tensors, own)
    wrong = [key for key, value in own.items() if key not in tensors or tensors[key].shape != value.shape]
    if wrong:
        shape = f"of shape {tuple(tensors[wrong[0]].shape)}" if wrong[0] in tensors else "missing"
        actual = f"{len(wrong)} of {len(own)} tensors missing or of another shape, such as {wrong[0]}, {shape}"
        raise ValueError(f"weights {source!r}: expected those of encoder {name!r}, got {actual}")
    encoder.load_state_dict({key: tensors[key].to(value.dtype) for key, value in own.items()})


def _rename(tensors: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    converted = to_timm(tensors)
    ours = {}
    for key, value in own.items():
        source_name = next((name for name in (key, *own_names(key)) if name in converted), None)
        if source_name is not None:
            ours[key] = converted[source_name]
        elif key.startswith(("norms.0.", "norms.1.", "norms.2.")) or key.endswith("num_batches_tracked"):
            ours[key] = value
    return ours


def is_file(path: Traversable) -> bool:
    """Whether a file exists; False if the name cannot be a file's."""
    try:
        return path.is_file()
    except OSError:
        return False


def read_weights(name: str, source: str) -> dict[str, Tensor]:
    """Read the tensors of a file, of timm's model of this name, or of the built-in file for this encoder."""
    if source == "scenes":
        embedded = resources.files("fedhca2") / "models" / "weights" / f"{name}.safetensors"
        if not is_file(embedded):
            raise ValueError(f"weights 'scenes': expected encoder 'swin_micro', got {name!r}")
        return load_bytes(embedded.read_bytes())
    if source == "timm":
        return timm_tensors(name)
    path = _existing(Path(source))
    return _from_file(path, path.stat().st_mtime_ns)


def digest(source: str) -> str | None:
    """The SHA-256 of a weights file; None for weights chosen by name."""
    if source in NAMED:
        return None
    path = _existing(Path(source))
    state = path.stat()
    is_settled = time_ns() - state.st_mtime_ns > 10**9  # a file that changes again has another time of change
    return (_digest if is_settled else _digest.__wrapped__)(path, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=64)  # an experiment is written in many places
def _digest(path: Path, changed: int, size: int) -> str:
    """The SHA-256 of a file that was last changed then."""
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


@lru_cache(maxsize=1)  # all clients of an experiment read the same file
def timm_tensors(name: str) -> dict[str, Tensor]:
    """The tensors of timm's own weights for a model, from its cache or its hub."""
    with explain_errors("weights 'timm'", f"expected timm to have or fetch those of {name!r}"):
        return dict(timm.create_model(name, pretrained=True).state_dict())


@lru_cache(maxsize=1)
def _from_file(path: Path, changed: int) -> dict[str, Tensor]:
    with explain_errors(f"weights {str(path)!r}", "expected a file of tensors"), warnings.catch_warnings():
        if path.suffix == ".safetensors":
            return load_bytes(path.read_bytes())
        warnings.simplefilter("ignore")  # about pickles; the error says enough
        content = torch.load(path, map_location="cpu", weights_only=True)
    for key in ("state_dict", "model"):
        content = content.get(key, content) if isinstance(content, Mapping) else {}
    tensors = {name: value for name, value in content.items() if isinstance(name, str) and isinstance(value, Tensor)}
    return {name: value for name, value in tensors.items() if value.layout == torch.strided and not value.is_quantized}


def _existing(path: Path) -> Path:
    if not is_file(path):
        raise ValueError(f"weights: expected one of {', '.join(NAMED)}, or a file, got no file {str(path)!r}")
    return path


def to_timm(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename the tensors of a backbone to timm's names: from timm, mmseg (UPerNet) or the authors of Swin."""
    renamed = dict(tensors)
    for prefix in ("module.", "model.", "backbone.", "encoder."):
        if any(name.startswith(prefix) for name in renamed):
            renamed = {name.removeprefix(prefix): value for name, value in renamed.items() if name.startswith(prefix)}
    if any("attn.w_msa." in name for name in renamed):
        words = {"patch_embed.projection.": "patch_embed.proj.", "stages.": "layers.", "attn.w_msa.": "attn."}
        words |= {"ffn.layers.0.0.": "mlp.fc1.", "ffn.layers.1.": "mlp.fc2."}
        for mmseg, timm_word in words.items():
            renamed = {name.replace(mmseg, timm_word): value for name, value in renamed.items()}
        renamed |= {name: reordered_merging(value) for name, value in renamed.items() if ".downsample." in name}
    # timm merges patches at the next stage's start.
    if any(name.startswith("layers.0.downsample.") for name in renamed):
        stage = re.compile(r"(?<=^layers\.)\d+(?=\.downsample\.)")
        renamed = {stage.sub(lambda own: str(int(own[0]) + 1), name): value for name, value in renamed.items()}
    return renamed


def own_names(name: str) -> tuple[str, ...]:
    """The names that a tensor of our encoder may have in timm, the best first.

    >>> own_names("body.layers_1.blocks.0.norm1.weight"), own_names("norms.3.bias")
    (('layers_1.blocks.0.norm1.weight', 'layers.1.blocks.0.norm1.weight'), ('norm3.bias', 'norm.bias'))
    """
    part, _, rest = name.partition(".")
    if part == "norms":
        stage, _, rest = rest.partition(".")
        return (f"norm{stage}.{rest}", *([f"norm.{rest}"] if stage == "3" else []))
    rest = rest.removeprefix("model.")  # of plain transformers
    return rest, re.sub(r"^([a-z]+)_(\d)", r"\1.\2", rest)


def reordered_merging(tensor: Tensor) -> Tensor:
    """Convert a patch merging's weights [..., 4C] from mmseg's order of inputs to timm's.

    mmseg unfolds the 2×2 patch, so an input is 4c + 2y + x; in timm it is (2x + y)·C + c.
    """
    patches = tensor.reshape(*tensor.shape[:-1], -1, 2, 2)
    return patches.transpose(-3, -1).reshape(tensor.shape)
