"""A client's trained model, from its run's folder; the data it was trained on need not be there."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from fedhca2.config import suggest
from fedhca2.data.files import FileError, open_image, read_file, to_rgb
from fedhca2.data.transforms import for_evaluation
from fedhca2.errors import UserError
from fedhca2.experiment import ClientSpec, Experiment
from fedhca2.models import MultiTaskModel
from fedhca2.reports.pictures import overlay, paint
from fedhca2.run_folder.reader import Array, RunFiles
from fedhca2.tasks import LabelSpace, get_task

STRIDE = 32


@dataclass(frozen=True)
class Trained:
    """One client of a finished run."""

    run: RunFiles
    experiment: Experiment
    spec: ClientSpec
    _built: dict[tuple[int, int], MultiTaskModel] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def open(cls, run: str | Path, client: str) -> "Trained":
        """The trained model of this client; UserError if there is none."""
        files = RunFiles.open(run)
        experiment = files.experiment()
        specs = {spec.name: spec for spec in experiment.specs}
        if client not in specs:
            raise UserError([f"--client {client}: is not a client of {run}. {suggest(client, specs)}"])
        return cls(files, experiment, specs[client])

    @property
    def path(self) -> Path:
        """The file of its parameters."""
        return self.run.model_file(self.spec.name)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the images that it was trained on."""
        return self.experiment.data[self.spec.data].size

    @property
    def spaces(self) -> Mapping[str, LabelSpace]:
        """What the labels of its tasks look like."""
        labels = self.experiment.data[self.spec.data].labels
        return {task: labels[task] for task in self.spec.tasks}

    @cached_property
    def _tensors(self) -> dict[str, Tensor]:
        try:
            return dict(load_file(self.path))
        except (OSError, SafetensorError) as error:
            raise UserError([f"{self.path}: should be a trained model, found {error}"]) from None

    def model(self, size: tuple[int, int] | None = None) -> MultiTaskModel:
        """The model for images of this size, in evaluation mode. Windows of a Swin V2 depend on the size."""
        size = size or self.size
        if size not in self._built:
            self._built.clear()  # images mostly come in one size
            self._built[size] = self._build(size)
        return self._built[size]

    def _build(self, size: tuple[int, int]) -> MultiTaskModel:
        channels = {task: get_task(task).channels_for(space) for task, space in self.spaces.items()}
        model = MultiTaskModel(self.experiment.model.blank, channels, size)
        try:
            model.load_state_dict(self._tensors)
        except RuntimeError as error:
            reason = " ".join(str(error).split())[:200]
            raise UserError([f"{self.path}: should be the model of {self.spec.name!r}, found {reason}"]) from None
        return model.eval()

    @torch.inference_mode()
    def predict(self, image: Array) -> dict[str, Array]:
        """What the client predicts for an image, uint8 [3, H, W] of any size: {task: [C, H, W]}."""
        height, width = image.shape[-2:]
        padded = padded_size((height, width), self.size)
        sample = for_evaluation({"image": torch.from_numpy(np.ascontiguousarray(image))}, padded)
        outputs = self.model(padded)(sample["image"][None])
        top, left = (padded[0] - height) // 2, (padded[1] - width) // 2
        inside = (0, ..., slice(top, top + height), slice(left, left + width))
        return {task: get_task(task).predict(output)[inside].numpy() for task, output in outputs.items()}


def padded_size(size: tuple[int, int], least: tuple[int, int]) -> tuple[int, int]:
    """The smallest size that holds an image, is no smaller than what was trained on, and fits the network's strides.

    >>> padded_size((100, 20), (64, 64))
    (128, 64)
    """
    height, width = (-(-max(own, low) // STRIDE) * STRIDE for own, low in zip(size, least, strict=True))
    return height, width


def read_image(path: Path) -> Image.Image:
    """An image in RGB, the right way up; UserError if it cannot be read."""

    def read(path: Path) -> Image.Image:
        with open_image(path) as image:
            return to_rgb(path, ImageOps.exif_transpose(image))

    try:
        return read_file(path, "an image", read)
    except FileError as error:
        raise UserError([str(error)]) from None


def predict_files(trained: Trained, images: Sequence[Path], folder: Path, *, raw: bool = False) -> Iterator[Path]:
    """Write a coloured map and an overlay for each image and task, and with `raw` the array; gives what it wrote."""
    stems = [path.stem for path in images]
    if repeated := sorted({stem for stem in stems if stems.count(stem) > 1}):
        raise UserError([f"images should have different names, found {', '.join(repeated)} more than once"])
    folder.mkdir(parents=True, exist_ok=True)
    for path in images:
        image = read_image(path)
        for task, prediction in trained.predict(np.asarray(image).transpose(2, 0, 1)).items():
            painted = paint(get_task(task), prediction)
            pictures = {f"{path.stem}.{task}.png": painted, f"{path.stem}.{task}.overlay.png": overlay(image, painted)}
            for name, picture in pictures.items():
                picture.save(folder / name)
                yield folder / name
            if raw:
                np.save(folder / f"{path.stem}.{task}.npy", prediction)
                yield folder / f"{path.stem}.{task}.npy"
