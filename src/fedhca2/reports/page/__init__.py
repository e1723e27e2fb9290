"""A page that shows one run or several, in one HTML file that needs nothing else, and its building blocks."""

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from math import isfinite
from typing import Any

from PIL import Image

from fedhca2.reports.figures import Figure

ONE_EVALUATION = "Scores were measured only at the end. Set `evaluate_every: 5` to see curves."


@dataclass(frozen=True)
class Cell:
    """A cell of a table; `mark` is '', 'better', 'worse' or 'best', `value` is what the column is sorted by."""

    text: str
    mark: str = ""
    value: float | None = None
    colour: str = ""  # of a swatch in front


@dataclass(frozen=True)
class Table:
    """Rows under a heading; the first column names the row. `over` has headings that span columns, and how many."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""
    over: Sequence[tuple[str, int]] = ()
    folded: bool = False  # only its title is shown at first
    wide: bool = True


@dataclass(frozen=True)
class Tile:
    """A fact, large, with its name and a detail."""

    name: str
    fact: str
    detail: str = ""
    mark: str = ""


@dataclass(frozen=True)
class AnswerBlock:
    """The outcome in short: one number and what it means, sentences, and facts."""

    name: str
    number: str
    meaning: Sequence[str]  # sentences
    sentences: Sequence[str]
    tiles: Sequence[Tile]
    mark: str = ""


@dataclass(frozen=True)
class Text:
    """Preformatted text."""

    title: str
    text: str


@dataclass(frozen=True)
class Picture:
    """A picture as a data: address, or lines of text instead, some with a share; and a caption."""

    address: str = ""
    caption: str = ""
    lines: Sequence[tuple[str, float | None]] = ()


@dataclass(frozen=True)
class Key:
    """What colours mean: a name for each, or a strip of colours between two words."""

    swatches: Sequence[tuple[str, str]] = ()  # name and colour
    strip: str = ""  # a picture, as a data: address
    ends: tuple[str, str] = ("", "")
    words: str = ""


@dataclass(frozen=True)
class Gallery:
    """Pictures in a grid: each row has a name and at most one picture per column."""

    title: str
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Picture]]]
    colour: str = ""
    key: Key = field(default_factory=Key)


@dataclass(frozen=True)
class Drawing:
    """A static figure, as SVG."""

    title: str
    svg: str
    note: str


Block = str | Table | AnswerBlock | Text | Gallery | Drawing | Figure  # a string is a remark instead of a figure


@dataclass(frozen=True)
class Section:
    """A tab of the page, with the colours of its clients, groups or methods if figures use them."""

    title: str
    blocks: Sequence[Block]
    colours: Mapping[str, str] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """Its title as a part of an address."""
        return self.title.lower().replace(" ", "-")

    @property
    def figures(self) -> list[Figure]:
        """The figures among the blocks."""
        return [block for block in self.blocks if isinstance(block, Figure)]

    @property
    def legend(self) -> Mapping[str, str]:
        """The colours that its figures use; a figure with its own names needs none."""
        used = {trace.get("meta") for figure in self.figures for trace in figure.data}
        return {label: colour for label, colour in self.colours.items() if label in used}


def fill(template: str, **values: Any) -> str:
    """Fill one of the templates, in which texts are escaped."""
    from jinja2 import Environment, PackageLoader  # which few commands need
    from markupsafe import Markup, escape

    loader = PackageLoader("fedhca2.reports.page")
    environment = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["code"] = lambda text: Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(text))))
    environment.filters |= {"px": "{:.1f}".format, "whole": "{:.0f}".format}
    environment.tests["finite"] = isfinite
    return environment.get_template(template).render(values)


def address(image: Image.Image, widest: int = 256, *, photograph: bool = False) -> str:
    """Encode a picture as a data: address, scaled down if it is wide."""
    if image.width > widest:
        way = Image.Resampling.LANCZOS if photograph else Image.Resampling.NEAREST  # which mixes no colours
        image = image.resize((widest, max(1, round(image.height * widest / image.width))), way)
    data, kind = BytesIO(), "jpeg" if photograph else "png"
    image.convert("RGB").save(data, kind.upper(), optimize=True, quality=90)
    return f"data:image/{kind};base64,{base64.b64encode(data.getvalue()).decode()}"
