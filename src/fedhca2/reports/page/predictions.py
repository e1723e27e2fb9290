"""Predictions and labels: of local training and of the federation, or of several methods, for the same images."""

from collections.abc import Mapping, Sequence
from math import inf, isfinite, nan

import numpy as np
import torch

from fedhca2.errors import UserError
from fedhca2.painting import paint_depth
from fedhca2.reports.figures.groups import group_clients
from fedhca2.reports.page import Gallery, Key, Picture, address
from fedhca2.reports.page.tables import finite_gains
from fedhca2.reports.pictures import paint, paint_label, to_image, unit_of
from fedhca2.run_folder.reader import Array, RunFiles
from fedhca2.tasks import LabelSpace, Task
from fedhca2.words import metric_title, score_text

MAX_CLIENTS = 12  # whose pictures are on a page
Source = Mapping[str, Array]  # a client's samples
Ends = tuple[float, float]  # the least and the greatest value


def run_galleries(run: RunFiles) -> list[Gallery]:
    """Show labels, local and federated predictions by client and task; without a baseline, the untrained model's."""
    galleries = []
    colours = group_clients(run).client_colours
    for client in choose_clients(run):
        ours, alone = run.samples(client), run.baseline.samples(client) if run.baseline.begun else {}
        if not ours:
            continue
        if _same_images(ours, alone):
            columns = {"local": (alone, "after"), run.method: (ours, "after")}
        else:
            columns = {"before training": (ours, "before"), run.method: (ours, "after")}
        galleries += _galleries(run, client, columns, colours.get(client, ""))
    return galleries


def comparison_galleries(runs: Mapping[str, RunFiles]) -> list[Gallery]:
    """Show labels and the predictions of every method."""
    first, galleries = next(iter(runs.values())), []
    for client in choose_clients(first):
        samples = {label: run.samples(client) for label, run in list(runs.items())[:5]}
        reference = next((own for own in samples.values() if own), {})
        columns = {label: (own, "after") for label, own in samples.items() if own and _same_images(reference, own)}
        if columns:
            galleries += _galleries(first, client, columns, "")
    return galleries


def choose_clients(run: RunFiles) -> list[str]:
    """All clients or, of many, those that gained most and least, and one of each kind."""
    clients = list(run.tasks)
    if len(clients) <= MAX_CLIENTS:
        return clients
    ranked = [one.client for one in sorted(finite_gains(run), key=lambda one: one.gain)]
    ends = [*ranked[-3:], *ranked[:3]]
    candidates = [*ends, *(own[0] for own in group_clients(run).groups.values() if own), *clients]
    return list(dict.fromkeys(client for client in candidates if run.samples_file(client).is_file()))[:MAX_CLIENTS]


def _same_images(one: Source, other: Source) -> bool:
    return bool(one) and bool(other) and np.array_equal(one["image"], other["image"])


def _galleries(run: RunFiles, client: str, columns: Mapping[str, tuple[Source, str]], colour: str) -> list[Gallery]:
    """One gallery per task; raises UserError if the samples do not fit it."""
    samples = next(iter(columns.values()))[0]
    tasks = [key.removeprefix("label.") for key in samples if key.startswith("label.")]
    try:
        return [_gallery(run, client, run.task_set[task], columns, colour) for task in tasks]
    except (ValueError, KeyError, IndexError, RuntimeError) as error:
        raise UserError(run.samples_file(client), f"expected samples of the client's tasks, got {error}") from None


def _gallery(run: RunFiles, client: str, task: Task, columns: Mapping[str, tuple[Source, str]], colour: str) -> Gallery:
    """The best, the middle and the worst image of a task, by the score of the last column."""
    samples = next(iter(columns.values()))[0]
    names, labels = list(map(str, samples.get(f"names.{task.name}", ()))), samples[f"label.{task.name}"]
    keys = {label: (own, f"{when}.{task.name}") for label, (own, when) in columns.items()}
    maps = {label: own[key] for label, (own, key) in keys.items() if key in own}
    scores = {label: image_scores(task, own, labels, names) for label, own in maps.items()}
    images, rows = rank_images(task, scores[next(reversed(scores))]), []
    for word, i in images.items():
        known, ends, range_text = labels[i][task.known(torch.from_numpy(labels[i]).float()).numpy()], None, ""
        if _is_measured(task) and known.size:
            ends = float(known.min()), float(known.max())
            range_text = f"{ends[0]:.1f} to {ends[1]:.1f} {task.unit}"
        pictures = [Picture(address(to_image(samples["image"][i]), photograph=True))]
        pictures.append(_draw(task, labels[i], names, range_text, ends, label=True))
        pictures += [_draw(task, own[i], names, _score(task, scores[label][i]), ends) for label, own in maps.items()]
        rows.append((word, pictures))
    seen = [own[list(images.values())] for own in (labels, *maps.values())]
    title = client if len(run.tasks.get(client, ())) == 1 else f"{client}, {task.title}"
    return Gallery(title, ["input", "label", *maps], rows, colour, colour_key(task, seen, names))


def _draw(
    task: Task, values: Array, names: Sequence[str], caption: str, ends: Ends | None, *, label: bool = False
) -> Picture:
    """Show a map as a picture, measured values on the range of their label, and a vector in words."""
    if task.output != "map":
        return Picture(caption=caption, lines=describe_vector(task, values, names))
    if ends:
        map = torch.from_numpy(values).float()
        return Picture(address(to_image(paint_depth(task.ignored(map) if label else map, *ends).numpy())), caption)
    return Picture(address((paint_label if label else paint)(task, values, names)), caption)


def describe_vector(task: Task, vector: Array, names: Sequence[str]) -> list[tuple[str, float | None]]:
    """A vector as its class, as its largest shares, or as numbers.

    >>> from fedhca2.tasks import get_task
    >>> describe_vector(get_task("multilabel"), np.array([0.1, 0.9]), ["chair", "table"])
    [('table', 0.9), ('chair', 0.1)]
    """
    values = [round(float(value), 3) for value in vector]

    def name(number: float) -> str:
        return names[int(number)] if isfinite(number) and 0 <= number < len(names) else f"{number:g}"

    if task.grouped_by == "class":
        return [(name(value), None) for value in values]
    if task.label_range(LabelSpace(classes=1)) == (0, 1):
        positive = sorted((-value, i) for i, value in enumerate(values) if value > 0)
        return [(name(i), -value) for value, i in positive[:5]]
    named = [f"{name(i)}: " if names or len(values) > 1 else "" for i in range(len(values))]
    return [(f"{about}{value:.4g}{unit_of(task)}", None) for about, value in zip(named[:5], values, strict=False)]


def image_scores(task: Task, predictions: Array, labels: Array, names: Sequence[str] = ()) -> list[float]:
    """The task's main metric of each image, or NaN if it says little about a single one."""
    space = LabelSpace(names=tuple(names)) if names else LabelSpace(classes=256)
    if task.empty_metric.name in ("ods_f", "map"):  # of a whole split
        return [nan] * len(labels)
    scores = []
    for prediction, label in zip(predictions, labels, strict=True):
        metric = task.metric(space)
        truth = torch.from_numpy(label).float()
        truth = task.ignored(truth) if task.output == "map" else truth
        metric.update(torch.from_numpy(prediction)[None], truth[None])
        scores.append(metric.compute()[metric.name])
    return scores


def rank_images(task: Task, scores: Sequence[float]) -> dict[str, int]:
    """The best, the middle and the worst image by score, or the first ones without two scores.

    >>> from fedhca2.tasks import get_task
    >>> rank_images(get_task("depth"), [0.4, 0.1, 0.2, nan])
    {'best of 4': 1, 'middle': 2, 'worst of 4': 0}
    """
    sign = -1 if task.empty_metric.higher_is_better else 1
    ranked = sorted((i for i, score in enumerate(scores) if isfinite(score)), key=lambda i: sign * scores[i])
    if len(ranked) < 2:
        return {f"image {i + 1}": i for i in range(min(3, len(scores)))}
    ends = {f"best of {len(scores)}": ranked[0], f"worst of {len(scores)}": ranked[-1]}
    best, worst = ends.items()
    return dict([best, *([("middle", ranked[len(ranked) // 2])] if len(ranked) > 2 else []), worst])


def _score(task: Task, score: float) -> str:
    """The score of an image with its metric; of a single class, whether it is the right one."""
    if not isfinite(score):
        return ""
    if task.output != "map" and task.grouped_by == "class":
        return "right" if score else "wrong"
    return f"{metric_title(task.empty_metric.name)} {score_text(task.unit, score)}"


def _is_measured(task: Task) -> bool:
    """Whether it has maps of measured values, whose range only their labels have."""
    unbounded = task.label_range(LabelSpace(classes=1))[1] == inf
    return task.output == "map" and bool(task.unit) and unbounded and task.label_channels == 1


def colour_key(task: Task, maps: Sequence[Array], names: Sequence[str]) -> Key:
    """What the colours of a task's maps mean: the classes in them, or a strip from lowest to highest."""
    if task.output != "map":
        return Key()
    low, high = task.label_range(LabelSpace(names=tuple(names)) if names else LabelSpace(classes=256))
    if task.grouped_by == "class":
        present = sorted({int(value) for each in maps for value in np.unique(each) if 0 <= value <= min(high, 254)})
        swatches = []
        for number in present:
            pixel = np.array(paint(task, np.full((1, 1, 1), number, np.float32), names))[0, 0]
            swatches.append((names[number] if number < len(names) else f"class {number}", f"#{bytes(pixel).hex()}"))
        return Key(swatches)
    if task.label_channels == 3:
        return Key(words="Red, green and blue are x, y and z of the normal.")
    ramp = np.linspace(0, 1, 64, dtype=np.float32)[None, None].repeat(6, axis=1)
    if _is_measured(task):
        strip = to_image(paint_depth(torch.from_numpy(ramp), 0, 1).numpy())
        return Key(strip=address(strip), ends=("lowest", "highest value of the label; the range is under each label"))
    if not (isfinite(low) and isfinite(high)):
        return Key()
    return Key(strip=address(paint(task, low + (high - low) * ramp, names)), ends=(f"{low:g}", f"{high:g}"))
