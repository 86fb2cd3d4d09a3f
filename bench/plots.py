"""Draws the charts of the report as deterministic SVG files."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from xml.sax.saxutils import escape

from bench.measurement import Result

WIDTH, LABELS, RIGHT, ROW, TOP, BOTTOM = 760, 300, 70, 26, 34, 12
OWN, PEER, MISSED, LINE = "#2f6f9f", "#c9c9c9", "#b8442f", "#8a8a8a"
COLOURS, LEFT, NAMES = (OWN, MISSED, "#7a9a3a", LINE), 50, 210
"""Of the lines of a chart, and the widths of the space beside them for numbers and names."""


def ratio_chart(results: Sequence[Result]) -> str:
    """Draw the median of each ratio as a dot, its range as a line, and its target as a tick.

    All results have targets.
    """
    maximum = 1.08 * max(max(*one.ratios, one.target or 0) for one in results)
    parts = [_legend("dot: median; line: lowest to highest round; tick: target")]
    for row, one in enumerate(results):
        y = TOP + ROW * row + ROW / 2
        low, median, high, target = (
            _x(value, maximum)
            for value in (min(one.ratios), one.ratio, max(one.ratios), one.target or 0)
        )
        colour = OWN if one.is_met else MISSED
        parts += [
            _text(LABELS - 10, y, one.load, anchor="end"),
            _line(LABELS, y, WIDTH - RIGHT, y, "#eeeeee", 1),
            _line(target, y - 9, target, y + 9, "#222222", 2),
            _line(low, y, high, y, colour, 3),
            f'<circle cx="{median:.1f}" cy="{y:.1f}" r="5" fill="{colour}"/>',
            _text(WIDTH - RIGHT + 8, y, f"{one.ratio:.2f}", colour=colour),
        ]
    return _svg(parts, len(results))


def speed_chart(results: Sequence[Result]) -> str:
    """Draw two bars for each result: Corral above, its peer below."""
    maximum = max(max(one.own, one.peer) for one in results)
    parts = [_legend(f"{results[0].unit}; blue: Corral; grey: {_peers(results)}")]
    for row, one in enumerate(results):
        y = TOP + ROW * row + ROW / 2
        parts.append(_text(LABELS - 10, y, one.load, anchor="end"))
        for value, top, colour in ((one.own, y - 10, OWN), (one.peer, y, PEER)):
            width = _x(value, maximum) - LABELS
            parts.append(
                f'<rect x="{LABELS}" y="{top:.1f}" width="{width:.1f}" height="9" fill="{colour}"/>'
            )
            parts.append(_text(LABELS + width + 5, top + 4.5, f"{value:,.0f}", size=9))
    return _svg(parts, len(results))


def line_chart(series: Mapping[str, Sequence[tuple[str, float]]], legend: str) -> str:
    """Draw a line for each series, from 0 to the largest value, the first one over the others. All
    have the same x, which are texts at equal distances."""
    rows = 10
    bottom, step = TOP + ROW * (rows - 1), (WIDTH - LEFT - NAMES) / max(1, _most(series) - 1)
    maximum = max(value for points in series.values() for _, value in points)
    parts = [_text(LEFT, 16, legend, colour=LINE, size=11)]
    for share in (0, 0.5, 1):
        y = bottom - (bottom - TOP) * share
        parts.append(_line(LEFT, y, WIDTH - NAMES, y, "#eeeeee", 1))
        parts.append(_text(LEFT - 6, y, f"{share * maximum:.3g}", anchor="end", size=10))
    for name, colour in reversed([*zip(series, COLOURS, strict=False)]):
        placed = [
            (LEFT + step * i, bottom - (bottom - TOP) * value / maximum)
            for i, (_, value) in enumerate(series[name])
        ]
        for (x1, y1), (x2, y2) in pairwise(placed):
            parts.append(_line(x1, y1, x2, y2, colour, 2))
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>' for x, y in placed]
        y = TOP + 18 * [*series].index(name)
        parts.append(_text(WIDTH - NAMES + 20, y, name, colour=colour))
    longest = max(series.values(), key=len)
    parts += [
        _text(LEFT + step * i, bottom + 16, label, anchor="middle", size=10)
        for i, (label, _) in enumerate(longest)
    ]
    return _svg(parts, rows)


def _most(series: Mapping[str, Sequence[tuple[str, float]]]) -> int:
    return max(map(len, series.values()))


def _peers(results: Sequence[Result]) -> str:
    return ", ".join(dict.fromkeys(one.peer_name for one in results))


def _x(value: float, maximum: float) -> float:
    return LABELS + (WIDTH - LABELS - RIGHT) * value / maximum


def _legend(text: str) -> str:
    return _text(LABELS, 16, text, colour=LINE, size=11)


def _text(
    x: float, y: float, text: str, *, anchor: str = "start", colour: str = "#222222", size: int = 12
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" dominant-baseline="middle" text-anchor="{anchor}" '
        f'fill="{colour}" font-size="{size}">{escape(text)}</text>'
    )


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, width: int) -> str:
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" '
        f'stroke="{colour}" stroke-width="{width}"/>'
    )


def _svg(parts: Sequence[str], rows: int) -> str:
    def lines() -> Iterator[str]:
        height = TOP + ROW * rows + BOTTOM
        yield (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'width="{WIDTH}" height="{height}" font-family="sans-serif">'
        )
        yield f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>'
        yield from parts
        yield "</svg>"

    return "\n".join(lines()) + "\n"
