"""Predictions for people: painted maps, overlays, a panel of a client's samples; and answers in words and numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from fedhca2.errors import UserError
from fedhca2.painting import class_name
from fedhca2.run_folder.reader import Array, RunFiles
from fedhca2.tasks import LabelSpace, Task
from fedhca2.whole_files import put_in_place

GAP = 6  # pixels between the tiles of a panel


def paint(task: Task, values: Array, names: Sequence[str] = ()) -> Image.Image:
    """Paint a map [C, H, W] in the task's colours, with ignored pixels in grey, or a vector [C] as text and bars."""
    space = LabelSpace(names=tuple(map(str, names)))
    return to_image(task.paint(torch.from_numpy(np.ascontiguousarray(values)).float(), space).numpy())


def paint_label(task: Task, label: Array, names: Sequence[str] = ()) -> Image.Image:
    """Paint a label, with pixels that have nothing to learn in grey."""
    return paint(task, task.ignored(torch.from_numpy(label).float()).numpy(), names)


def to_image(pixels: Array) -> Image.Image:
    """Make an image from uint8 [3, H, W]."""
    return Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0)))


def save_picture(picture: Image.Image, path: Path) -> None:
    """Write a picture in the format that its name ends with; raises UserError if Pillow cannot write such a file."""
    format = Image.registered_extensions().get(path.suffix.lower())
    if format not in Image.SAVE:
        raise UserError(path, f"expected a name that ends in .png, .jpg or the like, got {path.suffix!r}")
    path.parent.mkdir(parents=True, exist_ok=True)
    with put_in_place(path) as temporary:
        picture.save(temporary, format)


def overlay(image: Image.Image, painted: Image.Image, strength: float = 0.55) -> Image.Image:
    """Lay a painted map over its image."""
    return Image.blend(image.convert("RGB"), painted.resize(image.size, Image.Resampling.NEAREST), strength)


def scale_to_width(image: Image.Image, width: int) -> Image.Image:
    """Scale an image to this width; small ones keep their pixels visible."""
    height = max(1, round(image.height * width / image.width))
    grows = width >= image.width
    return image.resize((width, height), Image.Resampling.NEAREST if grows else Image.Resampling.LANCZOS)


def sample_tiles(run: RunFiles, client: str, index: int) -> dict[str, dict[str, Image.Image]]:
    """One sample of a client by task: {task: {"image" | "label" | "before" | "after": picture}}."""
    arrays = run.samples(client)
    if not arrays:
        available = ", ".join(sorted(each for each in run.tasks if run.samples_file(each).is_file())) or "none"
        raise UserError(run.path, f"expected samples of client {client!r}, got {available}")
    if not 0 <= index < len(arrays["image"]):
        raise UserError("sample", f"expected a number below {len(arrays['image'])}, got {index}")
    tiles: dict[str, dict[str, Image.Image]] = {}
    for task in [name.removeprefix("label.") for name in arrays if name.startswith("label.")]:
        maps = {when: arrays[f"{when}.{task}"][index] for when in ("label", "before", "after")}
        names = list(arrays.get(f"names.{task}", ()))
        label = paint_label(run.task_set[task], maps["label"], names)
        tiles[task] = {"image": to_image(arrays["image"][index]), "label": label}
        tiles[task] |= {when: paint(run.task_set[task], maps[when], names) for when in ("before", "after")}
    return tiles


def samples_panel(run: RunFiles, client: str, index: int = 0, tile: int = 192) -> Image.Image:
    """Paint one row per task of a client: input, label, and the prediction before and after training."""
    rows, ink, font = sample_tiles(run, client, index), (34, 34, 34), ImageFont.load_default(15)
    titles = {"image": "input", "label": "label", "before": "before training", "after": "after training"}
    height = max(scale_to_width(picture, tile).height for tiles in rows.values() for picture in tiles.values())
    margin, left, top = 8, 150, 34  # pixels around the panel, for the tasks' names, and for the titles
    lefts = [left + column * (tile + GAP) for column in range(len(titles))]
    tops = [top + row * (height + GAP) for row in range(len(rows))]
    panel = Image.new("RGB", (lefts[-1] + tile + margin, tops[-1] + height + margin), "white")
    draw = ImageDraw.Draw(panel)
    for x, title in zip(lefts, titles.values(), strict=True):
        draw.text((x + tile / 2, margin), title, ink, font, anchor="mt")
    for y, (task, tiles) in zip(tops, rows.items(), strict=True):
        words = run.task_set[task].title.replace(" ", "\n")
        draw.multiline_text((margin, y + height / 2), words, ink, font, anchor="lm")
        for x, when in zip(lefts, titles, strict=True):
            panel.paste(scale_to_width(tiles[when], tile), (x, y))
    return panel


@dataclass(frozen=True)
class Answer:
    """What a model says about an input in one task.

    :param answer: in words.
    :param value: the number that belongs to them: a probability, a share of the pixels, or the predicted number.
    :param values: all of them by name.
    """

    answer: str
    value: float | None = None
    values: Mapping[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.answer


def answer_of(task: Task, space: LabelSpace, prediction: Array, probabilities: Array | None = None) -> Answer:
    """Put a task's prediction [C] or [C, H, W] into words.

    :param probabilities: of the classes of a vector, if the task has some.

    >>> from fedhca2.tasks import TASKS
    >>> pets = LabelSpace(names=("cat", "dog"))
    >>> str(answer_of(TASKS["classification"], pets, np.array([0.0]), np.array([0.71, 0.29])))
    'cat (0.71)'
    """
    if task.output == "map":
        return _of_map(task, space, prediction)
    if probabilities is None:
        unit, numbers = unit_of(task), {class_name(space.names, i): float(value) for i, value in enumerate(prediction)}
        if len(numbers) == 1:
            (value,) = numbers.values()
            return Answer(f"{value:.4g}{unit}", value, {space.names[0] if space.names else "value": value})
        return Answer(", ".join(f"{name} {value:.4g}{unit}" for name, value in numbers.items()), None, numbers)
    values = {class_name(space.names, i): round(float(value), 6) for i, value in enumerate(probabilities)}
    if task.label_channels is None:  # any number of classes may be there
        likely = [name for name in sorted(values, key=lambda name: -values[name]) if values[name] >= 0.5]
    else:
        likely = [class_name(space.names, int(prediction[0]))]
    text = ", ".join(f"{name} ({values[name]:.2f})" for name in likely)
    return Answer(text or "nothing", values[likely[0]] if likely else None, values)


def _of_map(task: Task, space: LabelSpace, map: Array) -> Answer:
    """Describe a map by the shares of its classes, by the pixels above one half, or by its range."""
    if task.grouped_by == "class":
        numbers, counts = np.unique(map.astype(np.int64), return_counts=True)
        order = np.argsort(-counts, kind="stable")
        values = {class_name(space.names, int(numbers[i])): float(counts[i] / map.size) for i in order}
        text = ", ".join(f"{name} {share:.0%}" for name, share in list(values.items())[:3])
        return Answer(text + ", …" * (len(values) > 3), next(iter(values.values())), values)
    if len(map) > 1:
        return Answer(f"{len(map)} channels of {map.shape[1]}×{map.shape[2]}")
    if task.label_range(space) == (0, 1):
        share = float((map >= 0.5).mean())
        return Answer(f"{share:.0%} of the pixels", share, {"share": share})
    least, mean, greatest = float(map.min()), float(map.mean()), float(map.max())
    values = {"least": least, "mean": mean, "greatest": greatest}
    return Answer(f"{least:.3g} to {greatest:.3g}{unit_of(task)}", mean, values)


def unit_of(task: Task) -> str:
    """The unit of a task's values, as it follows a number; none if % is that of its scores alone."""
    if task.unit in ("%", "°"):
        return task.unit if task.unit == "°" or task.grouped_by == "value" else ""
    return f" {task.unit}".rstrip()
