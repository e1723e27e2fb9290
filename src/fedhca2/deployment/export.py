"""Exporting models: files of ONNX, torch.export or safetensors, and a card that describes them."""

import re
import warnings
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import torch
from jinja2 import Environment, PackageLoader
from torch import Tensor, nn
from torch.export import Dim

from fedhca2.clients.state_file import tensor_file
from fedhca2.data.dataset import Size
from fedhca2.data.transforms import IMAGE_DEVIATION, IMAGE_MEAN
from fedhca2.deployment.trained import Trained
from fedhca2.errors import UserError
from fedhca2.imports import one_line
from fedhca2.models import MultiTaskModel
from fedhca2.reports.page.tables import scores_of
from fedhca2.run_folder.result import headline
from fedhca2.whole_files import ORDINARY, write_whole
from fedhca2.words import metric_heading, score_text

Format = Literal["safetensors", "onnx", "torch-export"]


def card(trained: Trained, format: str, file: str, image_size: Size) -> str:
    """Write the card in Markdown, for images of this size: `card.md`, filled in."""
    how_to_load = {
        "safetensors": "Only the parameters, for `fedhca2.models.MultiTaskModel`.",
        "onnx": "Load it with onnxruntime or another runtime; the input is `image`, the outputs have the tasks' names.",
        "torch-export": "Load it with `torch.export.load(FILE).module()`; it returns the outputs in the order below.",
    }
    mean, deviation = (", ".join(f"{v:.3f}" for v in t.flatten().tolist()) for t in (IMAGE_MEAN, IMAGE_DEVIATION))
    templates = Environment(loader=PackageLoader("fedhca2", "deployment"), trim_blocks=True, keep_trailing_newline=True)
    templates.filters["plain"] = _escape
    return templates.get_template("card.md").render(
        trained=trained,
        spec=trained.spec,
        experiment=trained.experiment,
        titles=", ".join(_escape(trained.tasks[task].title.lower()) for task in trained.spec.tasks),
        format=format,
        file=file,
        how_to_load=how_to_load[format],
        size=image_size,
        is_usual=image_size == trained.size,
        input_size=trained.input_size(image_size, "--size"),
        mean=mean,
        deviation=deviation,
        rows=[_row(trained, task) for task in trained.spec.tasks],
        is_tested=trained.run.finished and trained.run.outcome.split == "test",
    )


def _escape(text: str) -> str:
    """Text of a user in Markdown, with every sign that Markdown or HTML could take for its own as a number.

    >>> _escape("a|b <img>")
    'a&#124;b &#60;img&#62;'
    """
    return re.sub(r"[&<>\\`*\[\]|!~$]", lambda sign: f"&#{ord(sign[0])};", " ".join(text.split()))


def _row(trained: Trained, name: str) -> tuple[str, str, str, str]:
    """A task's row in the table of outputs."""
    task, shown = trained.tasks[name], ""
    if scores := scores_of(trained.run)[0].get(trained.spec.name, {}).get(name):
        main = headline(task, scores)
        shown = f"{metric_heading(main.metric, main.higher_is_better)} {score_text(main.unit, main.value)}"
    return name, str(task.channels_for(trained.spaces[name])), task.reading, shown


class Exported(nn.Module):
    """The network with the preparation of evaluation: takes RGB values 0 … 255 and returns raw outputs in the order of
    the tasks.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, model: MultiTaskModel, size: Size) -> None:
        """`size` is the one that images are padded to."""
        super().__init__()
        self.model = model
        self.size = size
        self.register_buffer("mean", IMAGE_MEAN.clone(), persistent=False)
        self.register_buffer("deviation", IMAGE_DEVIATION.clone(), persistent=False)

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        """Compute raw outputs for images [B, 3, H, W] that are no larger than the network's input.

        Padding and cropping select rows and columns: `pad` and slices would fix the size of an exported model.
        """
        padded, inside = (image - self.mean) / self.deviation, []
        for dim, side, own in zip((2, 3), self.size, image.shape[-2:], strict=True):
            positions = torch.arange(side, device=image.device) - (side - own) // 2
            is_inside = (positions >= 0) & (positions < own)
            padded = padded.index_select(dim, positions.clamp(0, own - 1)) * is_inside.view(-1, *[1] * (3 - dim))
            inside.append(torch.arange(own, device=image.device) + (side - own) // 2)
        outputs = self.model(padded).values()
        return tuple(
            output if output.ndim == 2 else output.index_select(2, inside[0]).index_select(3, inside[1])
            for output in outputs
        )


def export(trained: Trained, format: Format, folder: Path, size: Size | None = None) -> list[Path]:
    """Write CLIENT.onnx, CLIENT.pt2 or CLIENT.safetensors, and the card CLIENT.md.

    The model takes images of this size, by default that of training, and prepares them as `Trained.predict` does.
    Raises UserError if it cannot.
    """
    trained.require_images()
    image_size = size or trained.size
    if min(image_size) < 1:
        raise UserError("--size", f"expected 1×1 or more, got {image_size[0]}×{image_size[1]}")
    if trained.resizes and any(side > most for side, most in zip(image_size, trained.size, strict=True)):
        most = f"at most {trained.size[0]}×{trained.size[1]}, to which larger images are scaled down before"
        raise UserError("--size", f"expected {most}, got {image_size[0]}×{image_size[1]}")
    match format:
        case "safetensors":
            suffix, content = "safetensors", tensor_file(trained.model().state_dict(), {"format": "pt"})
        case "onnx":
            suffix, content = "onnx", _to_onnx(trained, image_size)
        case "torch-export":
            torch.export.save(_program(trained, image_size), file := BytesIO())
            suffix, content = "pt2", file.getvalue()
    path, about = folder / f"{trained.spec.name}.{suffix}", folder / f"{trained.spec.name}.md"
    text = card(trained, format, path.name, image_size)
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(path, content, ORDINARY)
    write_whole(about, text.encode(), ORDINARY)
    return [path, about]


def build_exported(trained: Trained, image_size: Size) -> Exported:
    """The network for images of this size, with their preparation; raises UserError if they are too large."""
    size = trained.input_size(image_size, "--size")
    return Exported(trained.model(size), size).eval()


def _program(trained: Trained, image_size: Size) -> torch.export.ExportedProgram:
    """The program for any number of images of this size; at the size of training, also for all smaller ones."""
    network, free = build_exported(trained, image_size), {0: Dim("batch", min=1)}
    if image_size == trained.size:
        free |= {2: Dim("height", min=1, max=image_size[0]), 3: Dim("width", min=1, max=image_size[1])}
    try:
        return torch.export.export(network, (torch.zeros(2, 3, *image_size),), dynamic_shapes=(free,))
    except (RuntimeError, ValueError) as error:
        got = f"{one_line(error)}; --format safetensors writes its parameters"
        raise UserError(trained.spec.name, f"expected a model that torch.export can trace, got {got}") from error


def _to_onnx(trained: Trained, image_size: Size) -> bytes:
    try:
        import onnxscript  # noqa: F401
    except ImportError:
        raise UserError("--format onnx", "onnxscript is not installed; run: pip install 'fedhca2[export]'") from None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter warns about itself
        options: dict[str, Any] = {"input_names": ["image"], "output_names": list(trained.spec.tasks), "verbose": False}
        program = torch.onnx.export(_program(trained, image_size), dynamo=True, opset_version=20, **options)
    if program is None:
        raise RuntimeError("torch.onnx.export: expected a program, got none")
    model, ours = program.model_proto, ("batch", "channels", "height", "width")  # names of free dimensions
    graph: Any = model.graph
    dims = [value.type.tensor_type.shape.dim for value in (*graph.input, *graph.output, *graph.value_info)]
    names = {dim.dim_param: name for dim, name in zip(dims[0], ours, strict=True)}
    for dim in (dim for shape in dims for dim in shape if dim.dim_param in names and dim.dim_param):
        dim.dim_param = names[dim.dim_param]
    return bytes(model.SerializeToString())
