"""A chart of lines as SVG, with nothing but the standard library. Pure."""

from collections.abc import Iterator, Sequence
from html import escape
from math import ceil, floor, log10
from typing import NamedTuple

BLUE, ORANGE, GREY, INK, GRID = "#2563eb", "#ea580c", "#6b7280", "#1f2937", "#e5e7eb"
WIDTH, HEIGHT = 760, 300
LEFT, RIGHT, TOP, BOTTOM = 64, 20, 44, 48  # margins
PER_LETTER = 6.6  # width of a letter of 12 px, about


class Line(NamedTuple):
    label: str
    colour: str
    points: Sequence[tuple[float, float]]
    dashed: bool = False


class Mark(NamedTuple):
    """A vertical line with a word beside it."""

    x: float
    label: str


def ticks(most: float, at_most: int) -> list[float]:
    """Round numbers from 0 to the first one that is not less than `most`."""
    raw = max(most, 1e-9) / (at_most - 1)
    power = 10.0 ** floor(log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * (1 - 1e-9))
    return [n * step for n in range(ceil(most / step - 1e-9) + 1)]


def chart(title: str, x: str, y: str, lines: Sequence[Line], marks: Sequence[Mark] = ()) -> str:
    """`title` is for who cannot see the picture; x and y say what the axes show, and in which unit."""
    across = ticks(max(point[0] for line in lines for point in line.points), 9)
    up = ticks(max(point[1] for line in lines for point in line.points), 5)

    def place(point: tuple[float, float]) -> tuple[float, float]:
        wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
        return LEFT + point[0] / across[-1] * wide, HEIGHT - BOTTOM - point[1] / up[-1] * high

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" font-size="12" '
        f'font-family="system-ui, Helvetica, Arial, sans-serif" fill="{INK}">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="6" fill="#fff"/>',
    ]
    for value in up:
        left, at = place((0, value))
        parts.append(f'<path d="M{left} {at:.1f}H{WIDTH - RIGHT}" stroke="{GRID}"/>')
        parts.append(text(left - 8, at + 4, f"{value:,.10g}", "end"))
    for value in across:
        at, bottom = place((value, 0))
        parts.append(text(at, bottom + 18, f"{value:,.10g}", "middle"))
    parts.append(text(LEFT + (WIDTH - LEFT - RIGHT) / 2, HEIGHT - 8, x, "middle", GREY))
    parts.append(text(8, TOP - 14, y, "start", GREY))
    parts += legend(lines)
    for mark in marks:
        at, bottom = place((mark.x, 0))
        parts.append(f'<path d="M{at:.1f} {TOP}V{bottom}" stroke="{INK}" stroke-dasharray="2 3"/>')
        parts.append(text(at - 6, TOP + 12, mark.label, "end"))
    for line in lines:
        path = "L".join(f"{across:.1f} {up:.1f}" for across, up in map(place, line.points))
        dashes = ' stroke-dasharray="6 4"' if line.dashed else ""
        shape = f'stroke="{line.colour}" stroke-width="2" stroke-linejoin="round"{dashes}'
        parts.append(f'<path d="M{path}" fill="none" {shape}/>')
    return "\n".join([*parts, "</svg>"])


def text(x: float, y: float, words: str, anchor: str, colour: str = INK) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{escape(words)}</text>'


def legend(lines: Sequence[Line]) -> Iterator[str]:
    """In one row from the right, above the picture."""
    at = WIDTH - RIGHT - sum(len(line.label) * PER_LETTER + 46 for line in lines) + 18
    for line in lines:
        dashes = ' stroke-dasharray="6 4"' if line.dashed else ""
        yield f'<path d="M{at:.1f} {TOP - 28}h22" stroke="{line.colour}" stroke-width="3"{dashes}/>'
        yield text(at + 28, TOP - 24, line.label, "start")
        at += len(line.label) * PER_LETTER + 46
