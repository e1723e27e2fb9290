"""A client's trained model from its run's folder, and re-evaluation of all of a run's models."""

import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from fedhca2 import imports
from fedhca2.clients import Client, DeviceSlot
from fedhca2.clients.training import autocast
from fedhca2.config import suggest
from fedhca2.data.augmentation import for_evaluation
from fedhca2.data.dataset import shared_property
from fedhca2.data.files import MAX_PIXELS, open_image, reading, to_rgb
from fedhca2.data.own import checked_array, checked_image
from fedhca2.data.transforms import Placement, fit_to_input, input_size, own_size, place_image
from fedhca2.errors import UserError
from fedhca2.experiment import ClientSpec, Experiment, open_data
from fedhca2.experiment.build import plan_clients
from fedhca2.federation.in_process import choose_devices
from fedhca2.federation.membership import shards_after
from fedhca2.models import MultiTaskModel
from fedhca2.reports.pictures import Answer, answer_of, overlay, paint, save_picture
from fedhca2.run_folder.reader import Array, RunFiles
from fedhca2.run_folder.result import Result, Scored, Scores, both_gains
from fedhca2.tasks import LabelSpace, TaskSet
from fedhca2.whole_files import put_in_place


@dataclass(frozen=True, repr=False)
class Trained:
    """A client's trained model, from a finished run: `model()` for torch, `predict` for arrays, `answer` for words.

    >>> import fedhca2
    >>> home = fedhca2.Trained.open("runs/first", "home-1")  # doctest: +SKIP
    >>> home.predict("photo.jpg")["depth"].shape  # doctest: +SKIP
    """

    run: RunFiles
    experiment: Experiment
    spec: ClientSpec
    _built: dict[tuple[int, int], MultiTaskModel] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def open(cls, run: str | Path, client: str, allow_code: Sequence[str] = ()) -> "Trained":
        """Open this client's trained model; raises UserError if there is none.

        :param run: the run's folder.
        :param client: the client's name.
        :param allow_code: files and modules that the run's folder names and that you trust.
        """
        imports.allow_code(allow_code)
        files = RunFiles.open(run)
        experiment = files.experiment()
        specs = {spec.name: spec for spec in experiment.specs}
        if client not in specs:
            raise UserError("--client", f"expected a client of {run}, got {client!r}. {suggest(client, specs)}")
        return cls(files, experiment, specs[client])

    def __repr__(self) -> str:
        return f"Trained({str(self.run.path)!r}, {self.spec.name!r}: {', '.join(self.spec.tasks)})"

    @property
    def path(self) -> Path:
        """The file with its parameters."""
        return self.run.model_file(self.spec.name)

    @shared_property
    def size(self) -> tuple[int, int]:
        """Height and width of its training images, or the shape of its arrays."""
        return self.experiment.size_of(self.spec.data)

    @shared_property
    def _encode(self) -> Callable[[Any], Any]:
        """The function that turns a user's inputs into arrays, as the data set has it."""
        opened = self.experiment.open(self.spec.data, "train")
        encode: Callable[[Any], Any] = getattr(getattr(opened, "data", None), "encode", lambda value: value)
        return encode

    @property
    def resizes(self) -> bool:
        """Whether larger images are scaled down."""
        return self.experiment.data[self.spec.data].resize is not None

    @property
    def tasks(self) -> TaskSet:
        """The tasks that its run knows."""
        return self.experiment.task_set

    @property
    def spaces(self) -> Mapping[str, LabelSpace]:
        """The label formats of its tasks."""
        labels = self.experiment.labels[self.spec.data]
        return {task: labels[task] for task in self.spec.tasks}

    @shared_property
    def _tensors(self) -> dict[str, Tensor]:
        if not self.path.is_file():
            _ = self.run.outcome  # raises UserError if the run is not finished
        try:
            return dict(load_file(self.path))
        except (OSError, SafetensorError) as error:
            raise UserError(self.path, f"expected a trained model, got {error}") from None

    def model(self, size: tuple[int, int] | None = None) -> MultiTaskModel:
        """Build the torch module, in evaluation mode, for images of this size; by default that of training."""
        size = size or self.size
        if size in self._built:
            return self._built[size]
        channels = {task: self.tasks[task].channels_for(space) for task, space in self.spaces.items()}
        try:
            model = MultiTaskModel(self.spec.model.blank, channels, size, self.tasks)
        except (RuntimeError, AssertionError, ValueError) as error:
            expected = f"images of a size that {self.spec.model.encoder.title} takes"
            got = f"{size[0]}×{size[1]} after padding: {imports.one_line(error)}"
            raise UserError(self.spec.name, f"expected {expected}, got {got}") from None
        try:
            model.load_state_dict(self._tensors)
        except RuntimeError as error:
            reason = " ".join(str(error).split())[:200]
            raise UserError(self.path, f"expected the model of {self.spec.name!r}, got {reason}") from None
        self._built.clear()  # images usually have one size
        self._built[size] = model.eval()
        return model

    def require_images(self) -> None:
        """Raise UserError if its inputs are not images."""
        if self.experiment.data[self.spec.data].are_arrays:
            expected = "expected images as inputs, got arrays; `Trained.predict` takes them"
            raise UserError(f"--client {self.spec.name}", expected)

    def input_size(self, own: tuple[int, int], name: str) -> tuple[int, int]:
        """The size of the network's input for an image of this size; raises UserError if it is too large for one."""
        size = input_size(own, self.size, resize=self.resizes)
        longest = 16_384  # of a side: resampling takes memory by its square
        if size != self.size and (prod(size) > MAX_PIXELS or max(size) > longest):
            most = f"at most {MAX_PIXELS} pixels with sides of at most {longest}"
            raise UserError(name, f"expected {most} as the network's input, got {size[0]}×{size[1]}")
        return size

    def predict(self, image: Any, name: str = "input") -> dict[str, Array]:
        """Predict an image of any size, or another input, as arrays: {task: [C, H, W] or [C]}.

        With the data set's `resize: fit`, a large image is scaled down, and its prediction up again.

        :param image: a path, a Pillow image, an array [H, W], [H, W, C] or [3, H, W], or a tensor [C, H, W], of bytes
            or floats from 0 to 1. If the data set has a method `encode`, what that takes, such as a row of a table.
        :param name: what a UserError calls the image if it is something else.
        """
        return self._predict(image, name)[0]

    def answer(self, image: Any, name: str = "input") -> dict[str, Answer]:
        """Predict an image, or another input, in words and numbers: {task: Answer}.

        `str(answer)` is what a person reads, such as "cat (0.71)"; `answer.values` has the numbers behind it.
        It takes what `predict` takes.
        """
        return self._predict(image, name)[1]

    @torch.inference_mode()
    def _predict(self, image: Any, name: str) -> tuple[dict[str, Array], dict[str, Answer]]:
        """Predictions of an input by task, and what they say."""
        inputs, region = self._prepare(image, name)
        predictions, answers = {}, {}
        with autocast(inputs.device, self.experiment.training.precision):
            outputs = self.model(self.size if region is None else own_size({"image": inputs}))(inputs[None])
        for name, output in outputs.items():
            task = self.tasks[name]
            values = task.predict(output)
            predictions[name] = (region.restore(task, values) if region else values)[0].numpy()
            shares = task.probabilities(output)[0].numpy() if task.probabilities else None
            answers[name] = answer_of(task, self.spaces[name], predictions[name], shares)
        return predictions, answers

    def _prepare(self, image: Any, name: str) -> tuple[Tensor, Placement | None]:
        """The network's input, prepared as in evaluation, and where the image lies in it; None for other inputs."""
        are_arrays = self.experiment.data[self.spec.data].are_arrays
        if isinstance(image, str | Path) and not are_arrays:
            image, name = read_image(Path(image)), str(image)
        try:
            if are_arrays:
                return checked_array(self._encode(image), self.size), None
            if isinstance(image, np.ndarray) and image.ndim == 3 and len(image) == 3 and image.shape[2] not in (1, 3):
                image = torch.tensor(image)  # [3, H, W]; data sets give arrays [H, W, 3]
            sample = {"image": checked_image(image)}
        except (ValueError, OSError) as error:  # Pillow reads a file when its pixels are needed
            raise UserError(name, str(error)) from None
        size = self.input_size(own_size(sample), name)
        return for_evaluation(fit_to_input(sample, size), size)["image"], place_image(own_size(sample), size)


def read_image(path: Path) -> Image.Image:
    """Read an image as RGB in its correct orientation; raises UserError if it cannot be read."""
    with reading(path, "an image"), open_image(path) as image:
        return to_rgb(path, ImageOps.exif_transpose(image))


def predict_files(trained: Trained, paths: Sequence[Path], folder: Path, *, raw: bool = False) -> list[dict[str, Any]]:
    """Write a picture for each image and task, of maps also an overlay, and with `raw` the array.

    Returns a record for each image and task: what the model says, and the files. `paths` are images, and folders of
    images, whose folders within them are repeated. If it fails, it leaves nothing, and what was there stays as it was.
    """
    trained.require_images()
    images = [each for source in paths for each in _images_in(source, folder.resolve())]
    named = [(path, path.relative_to(top).with_suffix("").as_posix()) for path, top in images]
    counts = Counter(name for _, name in named)
    if repeated := sorted(name for name, count in counts.items() if count > 1):
        raise UserError("images", f"expected different names, got {', '.join(repeated)} more than once")
    temporary = folder / ".new"
    new_folders = [each for each in (folder, *folder.parents) if not each.exists()]
    shutil.rmtree(temporary, ignore_errors=True)  # of a killed process
    temporary.mkdir(parents=True)
    try:
        records = [record for path, name in named for record in _predict_file(trained, path, temporary, name, raw=raw)]
        for name in [name for record in records for name in record["files"]]:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (temporary / name).replace(folder / name)
        return [{**record, "files": [str(folder / name) for name in record["files"]]} for record in records]
    finally:
        shutil.rmtree(temporary)
        for empty in new_folders:
            if not any(empty.iterdir()):
                empty.rmdir()


def _images_in(path: Path, out: Path) -> list[tuple[Path, Path]]:
    """An image file, or all those in a folder at any depth, each with the folder; raises UserError if it has none.

    Pictures in the folder `out`, which is written to, are not among them.
    """
    if not path.is_dir():
        return [(path, path.parent)]
    suffixes = {suffix for suffix, format in Image.registered_extensions().items() if format in Image.OPEN}
    candidates = (file for file in path.rglob("*") if file.suffix.lower() in suffixes and file.is_file())
    if images := sorted(file for file in candidates if out not in file.resolve().parents):
        return [(file, path) for file in images]
    raise UserError(path, "expected images in it, such as .jpg or .png files, got none")


def _predict_file(trained: Trained, path: Path, folder: Path, name: str, *, raw: bool) -> Iterator[dict[str, Any]]:
    """:param name: of the image in the folder, without an ending."""
    image = read_image(path)
    predictions, answers = trained._predict(image, str(path))
    for task, prediction in predictions.items():
        painted = paint(trained.tasks[task], prediction, trained.spaces[task].names)
        pictures = {f"{name}.{task}.png": painted}
        if trained.tasks[task].output == "map":
            pictures[f"{name}.{task}.overlay.png"] = overlay(image, painted)
        for file, picture in pictures.items():
            save_picture(picture, folder / file)
        arrays = [f"{name}.{task}.npy"] if raw else []
        for file in arrays:
            with put_in_place(folder / file) as aside, aside.open("wb") as whole:
                np.save(whole, prediction)
        yield {"image": str(path), "task": task, **asdict(answers[task]), "files": [*pictures, *arrays]}


def evaluate(
    run: Path,
    progress: Callable[[str], None],
    split: Scored | None = None,
    thresholds: int = 99,
    client: str | None = None,
) -> Result:
    """Score the run's models again, and those of the Local baseline if the run trained one; returns the new result.

    A baseline from another run has no models here; its scores are used if they are of the same kind.

    :param progress: is called with the name of the next client.
    :param split: the images to score; by default those of the run's result.
    :param thresholds: for edges.
    :param client: the only one to evaluate; by default all are.
    """
    files = RunFiles(run)
    result, experiment = files.outcome, files.experiment().blank  # trained values replace the initial ones
    names = [spec.name for spec in experiment.specs]
    if client is not None and client not in names:
        raise UserError("--client", f"expected one of {', '.join(names)}, got {client!r}")
    split = split or result.split
    data, device = open_data(experiment), choose_devices()[0]
    shards = shards_after(experiment, data, files)
    if split == "test" and not any(shard.test for shard in shards.values()):
        raise UserError("--split", "expected val or train, since the run has no test images, got test")
    baseline: Scores | None = None
    if files.baseline.begun:
        baseline = {}
    elif files.recorded_baseline is not None and (split, thresholds) == (result.split, 99):
        baseline = {name: own for name, own in files.recorded_baseline.items() if client in (None, name)}
    scores: Scores = {}
    for plan in plan_clients(experiment, data, shards, DeviceSlot(device)):
        name = plan.spec.name
        if client in (None, name):
            progress(name)
            built = plan.build()
            scores[name] = _scores(built, files.model_file(name), split, thresholds)
            if files.baseline.begun and baseline is not None:
                baseline[name] = _scores(built, files.baseline.model_file(name), split, thresholds)
    gains = both_gains(scores, baseline, experiment.task_set, experiment.kinds)
    return result.model_copy(update={"clients": scores, "split": split, "baseline": baseline, **gains})


def _scores(client: Client, model: Path, split: Scored, thresholds: int) -> dict[str, dict[str, float]]:
    """The scores of a client with the parameters in a file."""
    try:
        client.personal.model.load_state_dict(load_file(model))
    except (OSError, SafetensorError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(model, f"expected the trained model of {client.name!r}, got {reason}") from None
    batches = {"train": client.data.train, "val": client.data.val, "test": client.data.test}[split]
    assert batches is not None  # a run has test images for all of its clients, or for none
    labels = {task: replace(space, edge_thresholds=thresholds) for task, space in batches.data.labels.items()}
    return client.evaluate_on(batches, labels, trivial=True)
