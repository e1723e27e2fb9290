"""A figure of Δm over the number of images per client, as SVG."""

from math import ceil, floor, isnan, log10

from svg_parts import svg_drawing, svg_line, svg_text

from fedhca2.reports.drawings import tick_step
from fedhca2.reports.figures import COLOURS

LEFT, RIGHT, TOP, BOTTOM, WIDTH, HEIGHT = 70, 130, 20, 60, 760, 420  # pixels
TICKS, APART = 6, 17  # about 6 marks on the y axis; pixels between names


def gain_curve(curves, x_title, description):
    """Draw {method: {x: record of a leaderboard}} on a logarithmic x axis, in a band of one standard deviation."""
    ticks = sorted({x for points in curves.values() for x in points})
    spans = [span(entry) for points in curves.values() for entry in points.values()]
    lowest, highest = min(0, *(low for low, _ in spans)), max(0, *(high for _, high in spans))
    step = tick_step(highest - lowest or 1, TICKS)
    low, high = step * floor(lowest / step), step * ceil(highest / step)

    def x(value):
        share = log10(value / ticks[0]) / (log10(ticks[-1] / ticks[0]) or 1)
        return LEFT + 15 + (WIDTH - LEFT - RIGHT - 30) * share

    def y(value):
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - value) / ((high - low) or 1)

    parts = []
    for number in range(round((high - low) / step) + 1):
        value = low + number * step
        on_grid = abs(value) > step / 2  # the other line is Local's
        parts.append(paint(svg_line(LEFT, y(value), WIDTH - RIGHT, y(value)), "#ddd" if on_grid else "#222"))
        parts.append(svg_text(LEFT - 8, y(value) + 4, f"{value:+.{0 if step >= 1 else 1}f}" if on_grid else "0", "end"))
    for tick in ticks:
        parts += [svg_line(x(tick), y(low), x(tick), y(low) + 5)]
        parts += [svg_text(x(tick), y(low) + 20, f"{tick:,}", "middle")]
    parts.append(svg_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14, x_title, "middle"))
    middle = (y(low) + y(high)) / 2
    turned = svg_text(18, middle, "Δm over training alone (%)", "middle")
    parts.append(turned.replace("<text ", f'<text transform="rotate(-90 18 {middle:.1f})" '))
    for points, colour in zip(curves.values(), COLOURS, strict=False):
        parts += curve(sorted(points.items()), x, y, colour)
    parts += names(curves, y)
    return svg_drawing(WIDTH, HEIGHT, description, parts)


def curve(points, x, y, colour):
    """One method: its band, its line and its points."""
    lower = [f"{x(at):.1f},{y(span(entry)[0]):.1f}" for at, entry in points]
    upper = [f"{x(at):.1f},{y(span(entry)[1]):.1f}" for at, entry in points]
    band = (
        f'<polygon points="{" ".join([*upper, *reversed(lower)])}" fill="{colour}" fill-opacity="0.15" stroke="none"/>'
    )
    middle = [(f"{x(at):.1f}", f"{y(entry['delta_m']):.1f}") for at, entry in points]
    line = f'<polyline points="{" ".join(map(",".join, middle))}" fill="none" stroke="{colour}" stroke-width="2.5"/>'
    return [band, line, *(f'<circle cx="{a}" cy="{b}" r="3.5" fill="{colour}" stroke="none"/>' for a, b in middle)]


def span(entry):
    """One standard deviation below and above the mean."""
    reach = 0 if isnan(entry["standard_deviation"]) else entry["standard_deviation"]
    return entry["delta_m"] - reach, entry["delta_m"] + reach


def names(curves, y):
    """The methods' names at the right ends of their curves, apart from each other."""
    ends = {"local": y(0), **{method: y(points[max(points)]["delta_m"]) for method, points in curves.items()}}
    colours, lowest, parts = {"local": "#222", **dict(zip(curves, COLOURS, strict=False))}, 0.0, []
    for method in sorted(ends, key=ends.__getitem__):
        lowest = max(ends[method], lowest + APART)
        text = svg_text(WIDTH - RIGHT + 8, lowest + 4, method, "start")
        parts.append(text.replace("<text ", f'<text font-weight="600" fill="{colours[method]}" '))
    return parts


def paint(line, colour):
    return line.replace("<line ", f'<line stroke="{colour}" ')
