"""Encoders that do not start from random values."""

from importlib import resources
from pathlib import Path

import torch
from safetensors.torch import load as load_bytes
from torch import Tensor, nn

EMBEDDED = resources.files("fedhca2") / "models" / "weights"


def load_weights(encoder: nn.Module, name: str, source: str) -> None:
    """Put pre-trained values into an encoder: 'scenes' for those that come with the package, or a file.

    It is an error if a single value is missing.
    """
    tensors = read_weights(name, source)
    own = encoder.state_dict()
    wrong = [key for key, value in own.items() if key not in tensors or tensors[key].shape != value.shape]
    if wrong:
        found = f"{len(wrong)} of {len(own)} tensors missing or of another shape, among them {wrong[0]}"
        raise ValueError(f"weights {source!r} should fit encoder {name!r}, found {found}")
    encoder.load_state_dict({key: tensors[key].float() for key in own})


def read_weights(name: str, source: str) -> dict[str, Tensor]:
    """The tensors of a file, or of the embedded one for this encoder."""
    if source == "scenes":
        embedded = EMBEDDED / f"{name}.safetensors"
        if not embedded.is_file():
            raise ValueError(f"weights 'scenes' exist for swin_micro, found encoder {name!r}")
        return load_bytes(embedded.read_bytes())
    path = Path(source)
    if not path.is_file():
        raise ValueError(f"weights should be 'none', 'scenes' or a file, found {source!r}")
    if path.suffix == ".safetensors":
        return load_bytes(path.read_bytes())
    found = torch.load(path, map_location="cpu", weights_only=True)
    return dict(found.get("state_dict", found))
