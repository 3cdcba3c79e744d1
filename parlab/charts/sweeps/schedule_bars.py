"""Simulated schedules as bars of an iteration, with the bound that none of them beats, as inline SVG."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from parlab.charts.format import SPACE, Unit, in_column, quantity
from parlab.charts.svg import Svg

_ROW, _BAR, _HEAD = 36.0, 16.0, 22.0
_ROOM = 0.68
"""Share of the width that the longest bar takes; the time stands behind it."""


class ScheduleBar(NamedTuple):
    """A schedule with the time of its iteration and what a click on it opens."""

    title: str
    seconds: float
    bubble_fraction: float
    """Mean share in which the ranks are idle."""
    href: str
    is_recommended: bool = False
    is_drawn: bool = False
    """Whether its timeline stands below."""


def schedule_bars(bars: Sequence[ScheduleBar], bound_s: float, unit: Unit) -> Svg:
    """Draw the iteration of each schedule as work and idle time; a click opens its timeline."""
    extent = max([bound_s, *(bar.seconds for bar in bars)]) or 1.0
    height = _HEAD + _ROW * len(bars)
    rows = "".join(_row(place, bar, extent, unit) for place, bar in enumerate(bars))
    at = f"{100 * _ROOM * bound_s / extent:.2f}%"
    bound = (
        f'<svg x="{at}" overflow="visible"><path class="cur" d="M0 16V{height:g}"/>'
        f'<text class="b" x="0" y="11" text-anchor="end">no schedule below'
        f" {escape(quantity(bound_s, 's'))}</text></svg>"
    )
    label = f"Iteration of each schedule; bound {quantity(bound_s, 's')}: " + "; ".join(
        f"{bar.title} {quantity(bar.seconds, 's')}" for bar in bars
    )
    return Svg(
        f'<svg class="schedule-bars" width="100%" height="{height:g}" role="group" aria-label="{escape(label)}">'
        f"{rows}{bound}</svg>"
    )


def _row(place: int, bar: ScheduleBar, extent: float, unit: Unit) -> str:
    top = _HEAD + place * _ROW
    whole = 100 * _ROOM * bar.seconds / extent
    busy = whole * (1 - bar.bubble_fraction)
    idle = f"{100 * bar.bubble_fraction:.0f}{SPACE}% idle"
    mark = " · recommended" if bar.is_recommended else ""
    note = f"{bar.title}: {quantity(bar.seconds, 's', 6)}, {idle}; draw its timeline"
    return (
        f'<a href="{escape(bar.href)}"{" class=on" if bar.is_drawn else ""}><title>{escape(note)}</title>'
        f'<rect class="hit" y="{top:g}" width="100%" height="{_ROW:g}"/>'
        f'<text class="b" x="0" y="{top + 12:g}">{escape(bar.title)}<tspan class="sub">{mark}</tspan></text>'
        f'<rect class="f3" y="{top + 16:g}" width="{busy:.2f}%" height="{_BAR:g}" rx="2"/>'
        f'<rect class="f7" opacity=".45" x="{busy:.2f}%" y="{top + 16:g}" width="{whole - busy:.2f}%"'
        f' height="{_BAR:g}" rx="2"/>'
        f'<svg x="{whole:.2f}%" overflow="visible"><text class="v" x="6" y="{top + 28:g}">'
        f"{escape(in_column(bar.seconds, unit))}{SPACE}{escape(unit.name)}"
        f'<tspan class="sub">, {idle}</tspan></text></svg></a>'
    )
