"""The parts of a figure as SVG."""

from html import escape


def svg_drawing(width, height, description, parts):
    """A drawing on white paper, so that it is readable on a dark page too, with a text for those who cannot see it."""
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}"'
    look = 'font-family="system-ui, sans-serif" font-size="13" fill="#222" stroke="#222" role="img"'
    paper = '<rect width="100%" height="100%" fill="#fff" stroke="none"/>'
    head = [f'{opening} height="{height:.0f}" {look}>', f"<title>{escape(description)}</title>", paper]
    return "\n".join([*head, *parts, "</svg>\n"])


def svg_line(x1, y1, x2, y2):
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke-width="1"/>'


def svg_text(x, y, text, anchor):
    """A text that starts, ends or has its middle at x."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" stroke="none">{escape(text)}</text>'
