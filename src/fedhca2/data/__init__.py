"""Data sets, transforms, and which client has which images."""

from typing import Annotated

from pydantic import Field

from fedhca2.data.nyud import NyudData
from fedhca2.data.pascal_context import PascalContextData
from fedhca2.data.rendered import ScenesData

DataConfig = Annotated[ScenesData | PascalContextData | NyudData, Field(discriminator="kind")]

__all__ = ["DataConfig", "NyudData", "PascalContextData", "ScenesData"]
