"""Data sets, transforms, and which client has which images."""

from typing import Annotated

from pydantic import Field

from fedhca2.data.rendered import ScenesData

DataConfig = Annotated[ScenesData, Field(discriminator="kind")]

__all__ = ["DataConfig", "ScenesData"]
