"""Predictions of image files, as image files."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from fedhca2.data.files import FileError, open_image, read_file, to_rgb
from fedhca2.deployment.trained import Trained
from fedhca2.errors import UserError
from fedhca2.reports.pictures import overlay, paint
from fedhca2.tasks import get_task


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
