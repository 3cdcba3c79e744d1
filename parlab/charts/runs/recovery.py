"""Recovery as bars: the parts of an interruption side by side, and the goodput of each hour."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from html import escape

from parlab.charts.format import duration
from parlab.charts.svg import Canvas, Margins, Svg, length

WIDTH, BAR_HEIGHT = 620.0, 18.0
HOURS_HEIGHT = 120.0
_LEAST = 0.5
"""Width in pixels below which a part is not drawn."""


def recovery_bar(seconds: Mapping[str, float], titles: Mapping[str, str], label: str, longest_s: float) -> Svg:
    """Draw the parts of an interruption in their order; a bar of `longest_s` has the whole width."""
    canvas = Canvas(WIDTH, BAR_HEIGHT, (0, max(longest_s, 1e-9)), (0, 1), Margins(0, 0, 0, 0))
    at = 0.0
    for key, part_s in seconds.items():
        left, right = canvas.x(at), canvas.x(at + part_s)
        at += part_s
        if right - left < _LEAST:
            continue
        told = escape(f"{titles[key]}: {duration(part_s) if part_s >= 60 else f'{part_s:.3g} s'}")
        canvas.add(
            f'<rect class="rp-{key}" x="{length(left)}" y="0" width="{length(right - left)}"'
            f' height="{length(BAR_HEIGHT)}"><title>{told}</title></rect>'
        )
    return canvas.svg(label)


def hours_figure(hours: Sequence[tuple[datetime, float]]) -> Svg:
    """Draw the share of each hour that became lasting steps."""
    canvas = Canvas(WIDTH, HOURS_HEIGHT, (0, max(1, len(hours))), (0, 100), Margins(32, 4, 6, 20))
    canvas.y_axis()
    foot, gap = canvas.y(0), 1.0 if len(hours) < 200 else 0.0
    for place, (begin, share) in enumerate(hours):
        left, right, top = canvas.x(place), canvas.x(place + 1), canvas.y(100 * share)
        told = escape(f"{begin:%Y-%m-%d %H:%M}: {100 * share:.1f} %")
        canvas.add(
            f'<rect class="f1" x="{length(left)}" y="{length(top)}" width="{length(max(0.2, right - left - gap))}"'
            f' height="{length(foot - top)}"><title>{told}</title></rect>'
        )
    every = max(1, -(-len(hours) // 6))
    for place in range(0, len(hours), every):
        canvas.text(canvas.x(place), HOURS_HEIGHT - 5, f"{hours[place][0]:%-d %b %H:%M}")
    return canvas.svg("Goodput by hour, in per cent")
