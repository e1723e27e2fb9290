"""A trained model as a file for other programs, with a card that says how to use it."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Literal, get_args

import torch
from safetensors.torch import save
from torch import Tensor, nn

from fedhca2.data.transforms import IMAGE_DEVIATION, IMAGE_MEAN
from fedhca2.deployment.card import card
from fedhca2.deployment.trained import Trained
from fedhca2.experiment import ConfigError
from fedhca2.models import MultiTaskModel

Format = Literal["safetensors", "onnx", "torch-export"]
FORMATS: tuple[Format, ...] = get_args(Format)
SUFFIXES: dict[Format, str] = {"safetensors": "safetensors", "onnx": "onnx", "torch-export": "pt2"}
OPSET = 20


class Exported(nn.Module):
    """The network with normalisation in front: RGB values 0 … 255 in, raw outputs in the order of the tasks out."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, model: MultiTaskModel) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("mean", IMAGE_MEAN.clone(), persistent=False)
        self.register_buffer("deviation", IMAGE_DEVIATION.clone(), persistent=False)

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        """Raw outputs for images [1, 3, H, W]."""
        return tuple(self.model((image - self.mean) / self.deviation).values())


def export(trained: Trained, format: Format, folder: Path, size: tuple[int, int] | None = None) -> list[Path]:
    """Write CLIENT.onnx, CLIENT.pt2 or CLIENT.safetensors, and CLIENT.md, the card."""
    size = size or trained.size
    if any(side % 32 for side in size):
        raise ConfigError([f"--size: should be multiples of 32, found {size[0]}×{size[1]}"])
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{trained.spec.name}.{SUFFIXES[format]}"
    written: dict[Format, Callable[[], None]] = {
        "safetensors": lambda: _write(path, save(trained.model(size).state_dict(), {"format": "pt"})),
        "onnx": lambda: _to_onnx(trained, size, path),
        "torch-export": lambda: torch.export.save(_program(trained, size), path),
    }
    written[format]()
    about = folder / f"{trained.spec.name}.md"
    about.write_text(card(trained, format, path.name, size), "utf-8")
    return [path, about]


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def _program(trained: Trained, size: tuple[int, int]) -> torch.export.ExportedProgram:
    return torch.export.export(Exported(trained.model(size)).eval(), (torch.zeros(1, 3, *size),))


def _to_onnx(trained: Trained, size: tuple[int, int], path: Path) -> None:
    try:
        import onnxscript  # noqa: F401
    except ImportError:
        raise ConfigError(["--format onnx: needs more packages: pip install 'fedhca2[export]'"]) from None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter, about itself
        program = torch.onnx.export(
            _program(trained, size),
            dynamo=True,
            opset_version=OPSET,
            input_names=["image"],
            output_names=list(trained.spec.tasks),
            verbose=False,
        )
    if program is None:
        raise RuntimeError("torch.onnx.export should give a program, found none")
    program.save(path, external_data=False)
