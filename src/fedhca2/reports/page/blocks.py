"""The building blocks of a page."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO

from PIL import Image

from fedhca2.reports.figures import Figure


@dataclass(frozen=True)
class Cell:
    """A cell of a table; `mark` is '', 'better', 'worse' or 'best'."""

    text: str
    mark: str = ""


@dataclass(frozen=True)
class Table:
    """Rows under a heading; the first column names the row."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""
    kind: str = "table"


@dataclass(frozen=True)
class Text:
    """Preformatted text."""

    title: str
    text: str
    kind: str = "text"


@dataclass(frozen=True)
class Gallery:
    """Pictures in a grid: each row has a name and at most one picture per column, as data: addresses."""

    title: str
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[str]]]
    kind: str = "gallery"


@dataclass(frozen=True)
class Drawing:
    """A figure that does not move, as SVG."""

    title: str
    svg: str
    note: str
    kind: str = "drawing"


@dataclass(frozen=True)
class Section:
    """A tab of the page."""

    id: str
    title: str
    blocks: Sequence[Table | Text | Gallery | Drawing | Figure]

    @property
    def figures(self) -> list[Figure]:
        """The figures among the blocks."""
        return [block for block in self.blocks if isinstance(block, Figure)]


def address(image: Image.Image, widest: int = 256) -> str:
    """Encode a picture as a data: address, scaled down if it is wide."""
    if image.width > widest:
        image = image.resize((widest, round(image.height * widest / image.width)), Image.Resampling.LANCZOS)
    held = BytesIO()
    image.save(held, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(held.getvalue()).decode()}"
