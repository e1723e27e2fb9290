"""Data sets, transforms, partitions, and everything needed to write your own data set."""

from typing import Annotated

from pydantic import Field

from fedhca2.config import Config
from fedhca2.data.archive import Archive, Paths, Size, Source
from fedhca2.data.dataset import Dataset, Sample, Split
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
from fedhca2.data.nyud import NyudData
from fedhca2.data.partition import Even, PartitionConfig
from fedhca2.data.pascal_context import PascalContextData
from fedhca2.data.rendered import ScenesData
from fedhca2.tasks import LabelSpace

DataConfig = Annotated[ScenesData | PascalContextData | NyudData, Field(discriminator="kind")]

__all__ = [
    "Archive",
    "BrokenFileError",
    "Config",
    "DataConfig",
    "Dataset",
    "Even",
    "FileError",
    "LabelSpace",
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
