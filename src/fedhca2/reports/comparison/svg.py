"""Parts of drawings in SVG."""

from collections.abc import Sequence
from html import escape
from math import floor, log10


def svg_drawing(width: float, height: float, told: str, parts: Sequence[str]) -> str:
    """A drawing on white paper, so that it is readable on a dark page too, with a text for those who cannot see it."""
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}"'
    look = 'font-family="system-ui, sans-serif" font-size="13" fill="#222" stroke="#222" role="img"'
    paper = '<rect width="100%" height="100%" fill="#fff" stroke="none"/>'
    head = [f'{opening} height="{height:.0f}" {look}>', f"<title>{escape(told)}</title>", paper]
    return "\n".join([*head, *parts, "</svg>\n"])


def svg_line(x1: float, y1: float, x2: float, y2: float, width: int = 1) -> str:
    """A line."""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke-width="{width}"/>'


def svg_text(x: float, y: float, text: str, anchor: str) -> str:
    """A text that starts, ends or has its middle at x."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" stroke="none">{escape(text)}</text>'


def tick_step(room: float, ticks: int) -> float:
    """The smallest 1, 2 or 5 times a power of ten that divides an axis into `ticks` steps or fewer.

    >>> tick_step(17.0, 5)
    5.0
    """
    power = 10.0 ** floor(log10(room / ticks))
    return next(times * power for times in (1, 2, 5, 10) if room <= ticks * times * power)
