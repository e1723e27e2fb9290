"""Exporting models: ONNX or TorchScript files, and a card that describes them."""

import warnings
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from fedhca2.data.transforms import IMAGE_DEVIATION, IMAGE_MEAN
from fedhca2.deployment.trained import Trained
from fedhca2.errors import UserError
from fedhca2.models import MultiTaskModel
from fedhca2.reports.names import metric_heading, score_text
from fedhca2.reports.page.tables import latest_scores
from fedhca2.run_folder.result import headline
from fedhca2.tasks import get_task
from fedhca2.tensor_files import as_file, contents
from fedhca2.whole_files import ORDINARY, write_whole

LOADED = {
    "safetensors": "Only the parameters, for `fedhca2.models.MultiTaskModel`; normalise the image first: {normal}.",
    "onnx": "Load it with onnxruntime or another runtime; the input is `image`, the outputs have the tasks' names.",
    "torch-export": "Load it with `torch.export.load(FILE).module()`; it returns the outputs in the order below.",
}
USE = """\
## Input

`image`: float32 [1, 3, {height}, {width}], red, green, blue, values 0 to 255. {normal_note} Pad an image of another
size evenly on all sides{pad}, or scale it; then crop the padding from the outputs.
"""


def card(trained: Trained, format: str, file: str, size: tuple[int, int]) -> str:
    """Write the card in Markdown."""
    mean, deviation = (", ".join(f"{v:.3f}" for v in t.flatten().tolist()) for t in (IMAGE_MEAN, IMAGE_DEVIATION))
    normal = f"(image − mean) / deviation with mean ({mean}) and deviation ({deviation})"
    inside = format != "safetensors"
    note = f"The model normalises it itself: {normal}." if inside else f"Normalise it first: {normal}."
    pad = f" with the mean colour ({mean})" if inside else " with zeros after normalisation"
    spec, experiment = trained.spec, trained.experiment
    lines = [
        f"# {spec.name}",
        "",
        f"A model for {', '.join(get_task(task).title.lower() for task in spec.tasks)}, trained by client"
        f" `{spec.name}` on data set `{spec.data}` in a federation (`{experiment.method_name}`, {experiment.rounds}"
        f" rounds, seed {experiment.seed}). File: `{file}`.",
        "",
        LOADED[format].format(normal=normal),
        "",
        USE.format(height=size[0], width=size[1], normal_note=note, pad=pad),
        "## Outputs",
        "",
        "| task | channels | how to read it | score |",
        "| --- | ---: | --- | --- |",
        *(_row(trained, task) for task in spec.tasks),
    ]
    classes = [(task, space.names) for task, space in trained.spaces.items() if space.names]
    for task, names in classes:
        lines += ["", f"Classes of {task}: {', '.join(f'{i} {name}' for i, name in enumerate(names))}."]
    return "\n".join(lines) + "\n"


def _row(trained: Trained, task: str) -> str:
    scores = latest_scores(trained.run).get(trained.spec.name, {}).get(task)
    shown = ""
    if scores:
        main = headline(task, scores)
        shown = f"{metric_heading(main.metric, main.higher_is_better)} {score_text(task, main.value)}"
    return f"| {task} | {get_task(task).channels_for(trained.spaces[task])} | {get_task(task).reading} | {shown} |"


Format = Literal["safetensors", "onnx", "torch-export"]
FORMATS: tuple[Format, ...] = get_args(Format)
SUFFIXES: dict[Format, str] = {"safetensors": "safetensors", "onnx": "onnx", "torch-export": "pt2"}
OPSET = 20


class Exported(nn.Module):
    """The network with normalisation: takes RGB values 0 … 255 and returns raw outputs in the order of the tasks."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, model: MultiTaskModel) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("mean", IMAGE_MEAN.clone(), persistent=False)
        self.register_buffer("deviation", IMAGE_DEVIATION.clone(), persistent=False)

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        """Compute raw outputs for images [1, 3, H, W]."""
        return tuple(self.model((image - self.mean) / self.deviation).values())


def export(trained: Trained, format: Format, folder: Path, size: tuple[int, int] | None = None) -> list[Path]:
    """Write CLIENT.onnx, CLIENT.pt2 or CLIENT.safetensors, and the card CLIENT.md."""
    trained.require_images()
    size = size or trained.size
    if any(side % 32 for side in size):
        raise UserError([f"--size: should be multiples of 32, found {size[0]}×{size[1]}"])
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{trained.spec.name}.{SUFFIXES[format]}"
    written: dict[Format, Callable[[Trained, tuple[int, int]], bytes]] = {
        "safetensors": lambda trained, size: as_file(contents(trained.model(size).state_dict()), {"format": "pt"}),
        "onnx": _to_onnx,
        "torch-export": _to_torch_export,
    }
    about = folder / f"{trained.spec.name}.md"
    write_whole(path, written[format](trained, size), ORDINARY)
    write_whole(about, card(trained, format, path.name, size).encode(), ORDINARY)
    return [path, about]


def _program(trained: Trained, size: tuple[int, int]) -> torch.export.ExportedProgram:
    return torch.export.export(Exported(trained.model(size)).eval(), (torch.zeros(1, 3, *size),))


def _to_torch_export(trained: Trained, size: tuple[int, int]) -> bytes:
    held = BytesIO()
    torch.export.save(_program(trained, size), held)
    return held.getvalue()


def _to_onnx(trained: Trained, size: tuple[int, int]) -> bytes:
    try:
        import onnxscript  # noqa: F401
    except ImportError:
        raise UserError(["--format onnx: needs more packages: pip install 'fedhca2[export]'"]) from None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter warns about itself
        program = torch.onnx.export(
            _program(trained, size),
            dynamo=True,
            opset_version=OPSET,
            input_names=["image"],
            output_names=list(trained.spec.tasks),
            verbose=False,
        )
    if program is None:
        raise RuntimeError("torch.onnx.export should return a program, found none")
    return bytes(program.model_proto.SerializeToString())
