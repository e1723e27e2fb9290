"""Data sets that others have already written: map-style ones, Hugging Face's, and folders with a CSV file.

Each is a class of the kind that `own.py` describes.
"""

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image
from pydantic import PositiveInt

from fedhca2.data.dataset import Split
from fedhca2.data.files import FORMATS, file_in, read_colours, read_npy, read_values
from fedhca2.data.tables import CsvRows
from fedhca2.tasks import TASKS, TaskSet


class MapStyle:
    """Any data set with `len()` and `[index]`: torchvision's, or another of torch's kind.

    `names` describes its samples. For a tuple it lists the names of the items, as in ("image", "semseg"); for a dict it
    gives the keys by our names, as in {"image": "jpg", "classification": "label"}. Class names come from `labels`, or
    from the `features` that a Hugging Face data set has.
    """

    def __init__(
        self, dataset: Any, names: Sequence[str] | Mapping[str, str], labels: Mapping[str, Any] | None = None
    ) -> None:
        self.dataset = dataset
        self.keys: Mapping[str, Any] = names if isinstance(names, Mapping) else {n: i for i, n in enumerate(names)}
        features = getattr(dataset, "features", None) or {}
        class_names = {
            name: getattr(features.get(key), "names", None) for name, key in self.keys.items() if name != "image"
        }
        self.labels = class_names if labels is None else labels

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> dict[str, Any]:
        sample = self.dataset[index]
        return {name: sample[key] for name, key in self.keys.items()}


class HuggingFace(MapStyle):
    """A Hugging Face data set in a folder, as `save_to_disk` writes it; `columns` has its columns by our names.

    Images are those within its own files: a name of another file or an address, which a data set may have instead, is
    refused.
    """

    def __init__(
        self, split: Split, root: Path, columns: dict[str, str], train: str = "train", val: str = "validation"
    ) -> None:
        try:
            import datasets
        except ImportError:
            raise ImportError("`datasets` is not installed; run: pip install 'fedhca2[huggingface]'") from None
        chosen = datasets.load_from_disk(str(root))[train if split == "train" else val]
        chosen = chosen.select_columns(list(dict.fromkeys(columns.values())))
        for name, feature in chosen.features.items():
            if isinstance(feature, datasets.Image):
                chosen = chosen.cast_column(name, datasets.Image(decode=False))
        super().__init__(chosen, columns)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {name: self._opened(name, value) for name, value in super().__getitem__(index).items()}

    def _opened(self, name: str, value: Any) -> Any:
        if not isinstance(value, dict) or set(value) != {"bytes", "path"}:
            return value
        if value["bytes"] is None:
            raise ValueError(f"{self.keys[name]!r}: expected an image, got the name of one: {value['path']!r:.200}")
        return Image.open(BytesIO(value["bytes"]), formats=FORMATS)


class CsvImages(CsvRows):
    """A folder of images and one CSV file with a row for each.

    `columns` has a column by task: the name of a file for a map (PNG, or .npy for measured values), the name of a class
    for a classification, numbers for other vectors, each in a column of its own. An empty cell is unknown. `classes`
    has the names of a task's classes, or their number. Rows belong to the split that the column `split` names, or,
    without such a column, every fifth is for validation. Files are in `root`; with `links`, also where links lead.
    """

    def __init__(
        self,
        split: Split,
        root: Path,
        columns: dict[str, str | list[str]],
        file: str = "labels.csv",
        image: str = "image",
        classes: dict[str, list[str] | PositiveInt] | None = None,
        links: bool = False,
        tasks: TaskSet = TASKS,
    ) -> None:
        super().__init__(split, root / file, columns, [image], classes, tasks)
        self.root, self.image = root, image
        self.within = None if links else root
        self.ids = [row[image] for row in self.rows]

    def __getitem__(self, index: int) -> dict[str, Any]:
        row, line = self.rows[index], self.lines[index]
        pixels = read_colours(self._file(line, self.image, row[self.image]))
        return {"image": pixels, **{task: self.label(task, line) for task in self.columns}}

    def _file(self, line: int, column: str, name: str) -> Path:
        return file_in(self.root, name, within=self.within, where=self.at(line, column))

    def map(self, line: int, column: str, cell: str) -> Any:
        """A label map from its file."""
        path = self._file(line, column, cell)
        return read_npy(path) if path.suffix == ".npy" else read_values(path)
