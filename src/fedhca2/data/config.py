"""The settings of a data set: what an experiment says about it, before anything is opened."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, PositiveInt

from fedhca2.config import Config
from fedhca2.data.dataset import Dataset, Split
from fedhca2.data.files import BrokenFileError, reading
from fedhca2.data.partition import Even, PartitionConfig
from fedhca2.imports import folders, in_folders
from fedhca2.seeds import derive
from fedhca2.tasks import TASKS, LabelSpace, TaskSet

# A relative path starts at the folder of the experiment's file, or at the working directory.
LocatedPath = Annotated[Path, AfterValidator(lambda path, info: in_folders(path, folders(info)))]
Root = Annotated[LocatedPath, Field(description="the data set's folder")]
InputSize = Annotated[tuple[PositiveInt, PositiveInt], Field(description="height and width of the network's input")]
Sides = Annotated[tuple[PositiveInt, ...], Field(min_length=1, max_length=4)]
Shape = Annotated[Sides | None, Field(description="shape of arrays, by default known")]
Cached = Annotated[bool, Field(description="keep images in memory once they are read")]


class DataConfig(Config):
    """The settings of one data set."""

    are_arrays: ClassVar[bool] = False  # whether inputs are arrays rather than images
    kind: str
    size: InputSize
    partition: PartitionConfig = Field(Even(), description="how its images are divided among its clients")
    resize: Literal["fit"] | None = Field(
        None, description="fit: scale images larger than `size` down, and score predictions at the image's own size"
    )
    test: Annotated[float, Field(gt=0, lt=1)] | LocatedPath | None = Field(
        None,
        description="validation images that are kept for the final scores: a share of them, the same whatever the "
        "seed, or a file with their ids, one per line",
    )

    def divide(self, images: Sequence[int], val: Dataset) -> tuple[list[int], list[int]]:
        """Divide images of the split `val` into those for validation and those for the end, by their ids.

        Raises FileError if the file of ids cannot be read, or names an image that the data set does not have.
        """
        if self.test is None:
            return list(images), []
        if isinstance(self.test, Path):
            numbers = {id: image for image, id in enumerate(val.ids)}
            with reading(self.test, "ids of validation images, one per line"):
                listed = [line.strip() for line in self.test.read_text("utf-8").splitlines() if line.strip()]
            if strange := next((id for id in listed if id not in numbers), None):
                expected = f"expected ids of validation images, such as {val.ids[0]!r}"
                raise BrokenFileError(self.test, f"{expected}, got {strange!r:.80}")
            for_test = {numbers[id] for id in listed}
        else:
            ordered = sorted(images, key=lambda image: derive(0, "test", val.ids[image]))
            for_test = set(ordered[: round(self.test * len(ordered))])
        return [image for image in images if image not in for_test], [image for image in images if image in for_test]

    @property
    @abstractmethod
    def labels(self) -> Mapping[str, LabelSpace] | None:
        """The tasks that it has labels for; None if it must be opened to know them."""

    @abstractmethod
    def open(self, split: Split, tasks: TaskSet = TASKS) -> Dataset:
        """Open one split, with labels for some of these tasks."""


class DataSets:
    """Data sets that are open. Those of equal settings, however their images are divided, are opened once."""

    def __init__(self) -> None:
        self._opened: list[tuple[tuple[Any, ...], Dataset]] = []
        self._lock = Lock()

    def __reduce__(self) -> tuple[type["DataSets"], tuple[()]]:
        return DataSets, ()  # another process opens its own

    def open(self, config: DataConfig, split: Split, tasks: TaskSet) -> Dataset:
        """One split of the data set with these settings; raises FileError if it cannot be opened."""
        key = (type(config), config.model_dump(exclude={"partition", "test"}), tasks.declared, split)
        with self._lock:
            for opened_key, data in self._opened:
                if opened_key == key:
                    return data
            opened = config.open(split, tasks)
            self._opened.append((key, opened))
            return opened


def path_settings(config: type[DataConfig]) -> set[str]:
    """The settings that are paths of files, which differ from machine to machine."""
    return {name for name, field in config.model_fields.items() if "Path" in str(field.annotation)}
