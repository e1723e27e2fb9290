"""Data sets, transforms, partitions, and everything needed to write your own data set."""

from typing import Annotated, Any

from pydantic import BeforeValidator, SerializeAsAny, ValidationInfo

from fedhca2.config import Config, suggest
from fedhca2.data.adapters import CocoMasks, CsvImages, HuggingFace, MapStyle
from fedhca2.data.archives import Archive, NyudData, PascalContextData, Paths, Source
from fedhca2.data.config import DataConfig
from fedhca2.data.dataset import Dataset, Sample, Size, Split
from fedhca2.data.earth import Earth
from fedhca2.data.files import (
    BrokenFileError,
    FileError,
    MissingFileError,
    class_codes,
    read_colours,
    read_mat,
    read_normals,
    read_npy,
    read_shades,
    read_values,
)
from fedhca2.data.molecules import Molecules
from fedhca2.data.own import settings_class, settings_of
from fedhca2.data.partition import Even, PartitionConfig
from fedhca2.data.rendered import ScenesData
from fedhca2.data.tables import CsvTable
from fedhca2.imports import FORMS, folders, is_import_path, resolve_path
from fedhca2.tasks import LabelSpace

KINDS: dict[str, type[DataConfig]] = {
    "scenes": ScenesData,
    "pascal_context": PascalContextData,
    "nyud": NyudData,
    "csv": settings_of("csv", CsvImages),
    "coco": settings_of("coco", CocoMasks),
    "huggingface": settings_of("huggingface", HuggingFace),
    "earth": settings_of("earth", Earth),
    "molecules": settings_of("molecules", Molecules),
    "table": settings_of("table", CsvTable),
}


def of_kind(values: Any, info: ValidationInfo) -> Any:
    """The settings of a data set by its `kind`: built in, or a user's own."""
    if not isinstance(values, dict):
        return values
    kind = str(values.get("kind", "nothing"))
    if is_import_path(kind):
        kind = resolve_path(kind, folders(info))
        return settings_class(kind).model_validate({**values, "kind": kind}, context=info.context)
    if kind not in KINDS:
        raise ValueError(f"kind: expected a known kind or {FORMS}, got {kind:.200}. {suggest(kind, KINDS)}")
    return KINDS[kind].model_validate(values, context=info.context)


AnyData = Annotated[SerializeAsAny[DataConfig], BeforeValidator(of_kind)]

__all__ = [
    "Archive",
    "BrokenFileError",
    "CocoMasks",
    "Config",
    "CsvImages",
    "CsvTable",
    "DataConfig",
    "Dataset",
    "Even",
    "FileError",
    "HuggingFace",
    "LabelSpace",
    "MapStyle",
    "MissingFileError",
    "NyudData",
    "PartitionConfig",
    "PascalContextData",
    "Paths",
    "Sample",
    "ScenesData",
    "Size",
    "Source",
    "Split",
    "class_codes",
    "read_colours",
    "read_mat",
    "read_normals",
    "read_npy",
    "read_shades",
    "read_values",
]
