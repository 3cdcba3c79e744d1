"""Runs on nodes and on their way there, as bars over the time of day."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from parlab.charts.panels.frame import shortened
from parlab.charts.svg import CHARACTER_PX, Canvas, Margins, Svg, length

from .clock import Clock

WIDTH = 778.0
_ROW, _BAR = 28.0, 16.0
_NAME, _COUNT, _LEFT, _RIGHT = 0.0, 242.0, 258.0, 12.0
_LEAST = 2.0
_UNKNOWN_S = 600.0
"""What is shown of the future of a run without an expected start, at least."""
_NOW = 42.0
"""Half of the room of the word above the line of now (px)."""
_END_ROOM = 96.0
"""Room for the time after the last bar (px)."""


class Span(NamedTuple):
    """A run: it was queued, it starts, it ends."""

    since: float
    starts: float | None
    ends: float | None
    kind: str
    """The class of its bar: `run-running`, `run-finished` …; a queued run has `run-queued`."""
    is_waiting: bool
    end_text: str
    """`14:10`, `by 14:10`, `14:10 to 16:05`; empty for a run that has ended."""
    title: str
    planned: float | None = None
    """When Slurm expects to start it: a tick."""


class Row(NamedTuple):
    """One line: a run, or the runs of an experiment."""

    name: str
    suffix: str
    """What follows the name and is never cut: ` #4`."""
    devices: str
    """GPUs, or processes."""
    href: str
    spans: Sequence[Span]
    is_own: bool = False
    note: str = ""
    """Why a run without an expected start waits."""
    after: int | None = None
    """The row whose end lets it start: an arrow, where it is that of the person."""


class Closed(NamedTuple):
    """Devices that take no runs of everybody: a node that drains, a pool that is reserved."""

    name: str
    devices: str
    href: str
    reason: str


def queue_figure(rows: Sequence[Row], now: float, clock: Clock, counted: str, closed: Sequence[Closed] = ()) -> Svg:
    """Draw rows from the first request to the last expected end; what is expected is pale.

    Below them stands what takes no runs from now on, hatched.
    """
    spans = [span for row in rows for span in row.spans]
    begin, end = _range(spans, now)
    is_live = end > now
    height = 20 + _ROW * (len(rows) + len(closed)) + 22
    canvas = Canvas(WIDTH, height, (begin, end), (0, 1), Margins(_LEFT, _RIGHT + (_END_ROOM if is_live else 0), 20, 22))
    canvas.x_axis(clock.ticks(begin, end), clock.text, has_grid=True)
    canvas.text(_COUNT, 11, counted, "end")
    for place, row in enumerate(rows):
        _row(canvas, row, 20 + _ROW * place, now)
    for place, row in enumerate(rows):
        if row.is_own and row.after is not None and row.spans[0].starts is not None:
            _arrow(canvas, row.spans[0].starts, row.after, place)
    for place, own in enumerate(closed, start=len(rows)):
        _closed(canvas, own, 20 + _ROW * place, now)
    if is_live:
        at = canvas.x(now)
        canvas.add(f'<path class="now" d="M{length(at)} 14V{length(height - 22)}"/>')
        canvas.text(max(at, _COUNT + _NOW), 11, f"now {clock.text(now)}", "middle", "v")
    return canvas.svg("Runs and queue")


def _arrow(canvas: Canvas, starts: float, above: int, place: int) -> None:
    """Draw an arrow from the end of a run down to the start of the one that waits for it."""
    at, top = canvas.x(starts), 20 + _ROW * above + (_ROW + _BAR) / 2
    foot = 20 + _ROW * place + (_ROW - _BAR) / 2
    path = f"M{length(at)} {length(top)}V{length(foot)}m-3 -5l3 5l3 -5"
    canvas.add(f'<path class="starts" d="{path}"/>')


def _closed(canvas: Canvas, closed: Closed, top: float, now: float) -> None:
    middle, left, right = top + _ROW / 2, canvas.x(now), WIDTH - _RIGHT
    name = escape(shortened(closed.name, _COUNT - 34))
    canvas.add(
        f'<a href="{escape(closed.href)}"><title>{escape(closed.name)}: {escape(closed.reason)}</title>'
        f'<text x="{length(_NAME)}" y="{length(middle + 4)}">{name}</text></a>'
    )
    canvas.text(_COUNT, middle + 4, closed.devices, "end")
    canvas.add(
        '<defs><pattern id="closed" width="6" height="6" patternUnits="userSpaceOnUse"'
        ' patternTransform="rotate(45)"><path class="s7" d="M0 0V6" stroke-width="1.5" opacity=".6"/></pattern></defs>'
        f'<rect class="closed" fill="url(#closed)" x="{length(left)}" y="{length(middle - _BAR / 2)}"'
        f' width="{length(max(_LEAST, right - left))}" height="{length(_BAR)}" rx="2"/>'
    )
    room = right - left - 12
    text = shortened(closed.reason, room)
    back = f'width="{length(min(room, CHARACTER_PX * len(text) + 10))}" height="{length(_BAR - 2)}" rx="2"'
    canvas.add(f'<rect class="fs" x="{length(left + 3)}" y="{length(middle - _BAR / 2 + 1)}" {back}/>')
    canvas.text(left + 8, middle + 4, text)


def _range(spans: Sequence[Span], now: float) -> tuple[float, float]:
    """Return the times that are shown: the past at most three times as long as what is expected."""
    ends = [span.ends for span in spans if span.ends is not None]
    last = max([*ends, *(span.starts for span in spans if span.starts is not None)], default=now)
    first = min(span.since if span.is_waiting or span.starts is None else span.starts for span in spans)
    if any(span.starts is None for span in spans):
        last = max(last, now + _UNKNOWN_S)  # why it waits stands there
    if last <= now:
        return first, max(last, first + 60)
    future = max(last - now, 60.0)
    return max(first, now - max(3 * future, 600.0)), last


def _row(canvas: Canvas, row: Row, top: float, now: float) -> None:
    middle = top + _ROW / 2
    if row.is_own:
        canvas.add(f'<rect class="own" x="-6" y="{length(top)}" width="{length(WIDTH + 6)}" height="{length(_ROW)}"/>')
    room = _COUNT - 34 - CHARACTER_PX * len(row.suffix)
    name = escape(shortened(row.name, room) + row.suffix)
    canvas.add(
        f'<a href="{escape(row.href)}"><title>{escape(row.name + row.suffix)}</title>'
        f'<text class="v" x="{length(_NAME)}" y="{length(middle + 4)}">{name}</text></a>'
    )
    canvas.text(_COUNT, middle + 4, row.devices, "end", "v")
    for span in row.spans:
        _wait(canvas, span, middle, now)
    for span in row.spans:
        _bars(canvas, span, middle, now)
    if row.note:
        canvas.text(canvas.x(now) + 8, middle + 4, shortened(row.note, WIDTH - canvas.x(now) - 12), kind="")


def _wait(canvas: Canvas, span: Span, middle: float, now: float) -> None:
    low = canvas.x_range[0]
    waits_until = span.starts if span.starts is not None else now
    if waits_until > span.since and waits_until > low:
        from_x = canvas.x(max(low, span.since))
        canvas.add(f'<path class="waits" d="M{length(from_x)} {length(middle)}H{length(canvas.x(waits_until))}"/>')
        if span.is_waiting and span.since >= low:
            canvas.add(f'<circle class="asked" cx="{length(from_x)}" cy="{length(middle)}" r="3"/>')


def _bars(canvas: Canvas, span: Span, middle: float, now: float) -> None:
    if span.starts is None:
        return
    low = canvas.x_range[0]
    ends = span.ends if span.ends is not None else now
    left, right = canvas.x(max(low, span.starts)), canvas.x(max(low, ends))
    solid = canvas.x(min(max(low, now), ends)) if not span.is_waiting else left
    if solid > left:
        _bar(canvas, (left, solid), middle, span.kind, span.title)
    if right > solid + 0.5:
        _bar(canvas, (solid, right), middle, f"{span.kind} expected", span.title)
    if span.planned is not None and span.planned >= low:
        at, half = canvas.x(span.planned), _BAR / 2 + 3
        path = f"M{length(at)} {length(middle - half)}V{length(middle + half)}"
        canvas.add(f'<path class="planned" d="{path}"><title>{escape(span.title)}</title></path>')
    if span.end_text:
        canvas.text(right + 6, middle + 4, span.end_text, kind="v")


def _bar(canvas: Canvas, ends: tuple[float, float], middle: float, kind: str, title: str) -> None:
    left, right = ends
    size = f'width="{length(max(_LEAST, right - left))}" height="{length(_BAR)}" rx="2"'
    canvas.add(
        f'<rect class="{kind}" x="{length(left)}" y="{length(middle - _BAR / 2)}" {size}>'
        f"<title>{escape(title)}</title></rect>"
    )
