"""The last hours of a node: its runs as ribbons, and below them what it measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from parlab.charts.format import Unit, unit_for
from parlab.charts.svg import Canvas, Look, Margins, Svg, length, ticks

from .clock import Clock

WIDTH, _LEFT, _RIGHT = 352.0, 34.0, 6.0
_RIBBON, _TRACK, _GAP = 18.0, 78.0, 22.0
_LINE = Look(7)
_TICKS = 2
_PLAIN = ("%", "°C")
"""Units without prefixes."""


class Ribbon(NamedTuple):
    """A run on the node."""

    starts: float
    ends: float
    kind: str
    """The class of its colour."""
    href: str
    title: str


class Track(NamedTuple):
    """A measured quantity over time; gaps are not finite."""

    title: str
    unit: str
    times: Sequence[float]
    values: Sequence[float]
    top: float | None = None
    """The upper end of its axis, if it has one: 100 for per cent."""


def day_figure(ribbons: Sequence[Ribbon], tracks: Sequence[Track], ends: tuple[float, float], clock: Clock) -> Svg:
    """Draw the runs of a node over its measurements."""
    height = _RIBBON + 8 + len(tracks) * (_TRACK + _GAP) + 20
    canvas = Canvas(WIDTH, height, ends, (0, 1), Margins(_LEFT, _RIGHT, 0, 20))
    foot = height - 20
    for ribbon in ribbons:
        _ribbon(canvas, ribbon, foot)
    top = _RIBBON + 8 + _GAP - 6
    for track in tracks:
        _track(canvas, track, top)
        top += _TRACK + _GAP
    for at in clock.ticks(*ends, count=4):
        canvas.text(min(max(canvas.x(at), _LEFT + 14), WIDTH - 18), height - 5, clock.text(at), "middle")
    return canvas.svg("Runs and measurements of the node")


def _ribbon(canvas: Canvas, ribbon: Ribbon, foot: float) -> None:
    low, high = canvas.x_range
    left, right = canvas.x(max(low, ribbon.starts)), canvas.x(min(high, ribbon.ends))
    size = f'x="{length(left)}" width="{length(max(1.5, right - left - 1))}"'
    canvas.add(
        f'<a href="{escape(ribbon.href)}"><title>{escape(ribbon.title)}</title>'
        f'<rect class="{ribbon.kind} shade" {size} y="{length(_RIBBON)}" height="{length(foot - _RIBBON)}"/>'
        f'<rect class="{ribbon.kind}" {size} y="0" height="{length(_RIBBON - 2)}" rx="2"/></a>'
    )


def _track(canvas: Canvas, track: Track, top: float) -> None:
    finite = [value for value in track.values if math.isfinite(value)]
    highest = track.top if track.top is not None else max(finite, default=1.0) or 1.0
    unit = Unit(1.0, track.unit, track.unit) if track.unit in _PLAIN else unit_for([highest], track.unit)
    factor = unit.factor
    inner = Canvas(
        WIDTH, top + _TRACK, canvas.x_range, (0, 1.02 * highest / factor), Margins(_LEFT, _RIGHT, top + 6, 0)
    )
    inner.y_axis(ticks(0, highest / factor, _TICKS))
    inner.line(list(track.times), [value / factor for value in track.values], _LINE)
    canvas.add("".join(inner._parts))
    canvas.text(0, top - 4, track.title, kind="v")
    canvas.text(6.4 * len(track.title) + 4, top - 4, unit.name)
