"""A figure of one method's gains over training alone: a bar for each task, and a dot for each seed, as SVG."""

from svg_parts import svg_drawing, svg_text

from fedhca2.reports.figures import COLOURS

LEFT, RIGHT, ROW, WIDTH = 250, 70, 34, 760  # pixels


def gain_bars(gains, description):
    """Draw {label: gains in percent, one per seed}; the axis begins at 0 or at the lowest gain."""
    values = [value for own in gains.values() for value in own]
    low, high = min(0.0, *values), max(0.0, *values)
    height, parts = ROW * len(gains) + 50, []

    def x(value):
        return LEFT + (WIDTH - LEFT - RIGHT) * (value - low) / ((high - low) or 1)

    for number, (label, own) in enumerate(gains.items()):
        middle, mean = ROW * number + ROW / 2 + 6, sum(own) / len(own)
        parts.append(svg_text(LEFT - 10, middle + 4, label, "end"))
        start, width = min(x(0), x(mean)), abs(x(mean) - x(0))
        parts.append(
            f'<rect x="{start:.1f}" y="{middle - 10:.1f}" width="{width:.1f}" height="20" fill="{COLOURS[0]}"/>'
        )
        parts += [
            f'<circle cx="{x(value):.1f}" cy="{middle:.1f}" r="3" fill="#fff" stroke="#222" stroke-width="1"/>'
            for value in own
        ]
        parts.append(svg_text(x(max(*own, mean, 0)) + 10, middle + 4, f"{mean:+.1f}%", "start"))
    parts.append(svg_text(LEFT, height - 18, "gain over training alone; dots are seeds", "start"))
    return svg_drawing(WIDTH, height, description, parts)
