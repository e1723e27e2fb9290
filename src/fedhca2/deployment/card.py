"""The card of an exported model: what goes in, what comes out, what it is worth."""

from fedhca2.data.transforms import IMAGE_DEVIATION, IMAGE_MEAN
from fedhca2.deployment.trained import Trained
from fedhca2.federation.result import headline
from fedhca2.reports.names import ARROWS, metric_title
from fedhca2.reports.page.tables import latest_scores, number
from fedhca2.tasks import get_task

LOADED = {
    "safetensors": "The parameters alone, for `fedhca2.models.MultiTaskModel`; normalise the image first: {normal}.",
    "onnx": "Load it with onnxruntime or another runtime; the input is called `image`, the outputs as the tasks.",
    "torch-export": "Load it with `torch.export.load(FILE).module()`; it gives the outputs in the order below.",
}
USE = """\
## Input

`image`: float32 [1, 3, {height}, {width}], red, green, blue, values 0 to 255. {normal_note} An image of another size
is padded around its centre{pad}, or scaled, before; cut the padding off the outputs again.
"""


def card(trained: Trained, format: str, file: str, size: tuple[int, int]) -> str:
    """The card in Markdown."""
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
        shown = f"{metric_title(main.metric)} {ARROWS[main.higher_is_better]} {number(task, main.value)}"
    return f"| {task} | {get_task(task).channels_for(trained.spaces[task])} | {get_task(task).reading} | {shown} |"
