"""GPU hours by day: what they became."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from parlab.charts.svg import Canvas, Margins, Svg, length

WIDTH, HEIGHT = 438.0, 150.0
_GAP = 2.0


class Day(NamedTuple):
    """The parts of a day's hours, the useful ones first, by their class."""

    text: str
    """`13 Nov`."""
    parts: Sequence[tuple[str, str, float]]
    """Class, title and hours."""
    href: str = ""
    """Where its events are listed."""

    @property
    def hours(self) -> float:
        return sum(hours for _, _, hours in self.parts)


def goodput_figure(days: Sequence[Day], least_pct: float) -> Svg:
    """Draw each day with hours as a bar of its shares, from `least_pct` to 100 %."""
    canvas = Canvas(WIDTH, HEIGHT, (0, max(1, len(days))), (least_pct, 100), Margins(32, 4, 6, 20))
    canvas.y_axis()
    foot = canvas.y(least_pct)
    for place, day in enumerate(days):
        _day(canvas, day, place, foot)
    every = max(1, len(days) // 4)
    for place in range(0, len(days), every):
        canvas.text((canvas.x(place) + canvas.x(place + 1)) / 2, HEIGHT - 5, days[place].text, "middle")
    return canvas.svg("What GPU hours became, by day")


def _day(canvas: Canvas, day: Day, place: int, foot: float) -> None:
    left, width = canvas.x(place), canvas.x(place + 1) - canvas.x(place) - _GAP
    done = 0.0
    if day.href:
        label = escape(f"{day.text}: its events")
        room = f'x="{length(left)}" y="{length(canvas.y(100))}" width="{length(min(width, 24))}"'
        canvas.add(
            f'<a href="{escape(day.href)}" aria-label="{label}"><rect class="day" {room}'
            f' height="{length(foot - canvas.y(100))}"/>'
        )
    for kind, title, hours in day.parts:
        low, done = done, done + 100 * hours / day.hours if day.hours else done
        top, bottom = canvas.y(min(100.0, done)), min(foot, canvas.y(low))
        if bottom - top < 0.2:
            continue
        told = escape(f"{day.text}: {title} {hours:,.1f} h of {day.hours:,.1f} h")
        canvas.add(
            f'<rect class="{kind}" x="{length(left)}" y="{length(top)}" width="{length(min(width, 24))}"'
            f' height="{length(bottom - top)}"><title>{told}</title></rect>'
        )
    if day.href:
        canvas.add("</a>")
