"""The trials of a study as bars while it runs, as inline SVG: measured, predicted, best so far."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from parlab.charts.format import significant
from parlab.charts.svg import Svg, length

_HEIGHT, _TOP, _FOOT = 220.0, 26.0, 34.0
_FEWEST = 8
"""Places that are drawn at least, so that the bars of the first trials are not wider than those of the last."""
_MOST_NAMED = 24
"""Bars with their value above them; of more, only the best one has it."""
_CLOSE = 26.0
FILLS = {"baseline": "f7", "hand-tuned": "f4", "search": "f1"}
"""By the role of a trial; the best is green."""


class TrialBar(NamedTuple):
    """A trial in the order of launches."""

    number: int
    key: str
    role: str
    state: str
    value: float | None
    expected: float | None
    """Predicted just before its launch."""
    href: str
    is_best: bool = False

    @property
    def note(self) -> str:
        measured = significant(self.value) if self.value else "OOM" if self.state == "oom" else self.state
        return f"{self.number}: {self.key}, {measured}" + (
            f", predicted {significant(self.expected)}" if self.expected else ""
        )


def trials(bars: Sequence[TrialBar], unit: str, places: int) -> Svg:
    """Draw the value of each trial (y) in order of launch (x), with its prediction and the best so far.

    `places` is the number of launches that the study may make: those to come are empty.
    """
    count = max(_FEWEST, places, len(bars))
    top_value = max([value for bar in bars for value in (bar.value, bar.expected) if value], default=1.0)
    step = 100 / count
    parts = [_bar(bar, place * step, step, top_value, count <= _MOST_NAMED) for place, bar in enumerate(bars)]
    foot = _HEIGHT - _FOOT
    parts.insert(0, f'<rect class="ax" y="{foot:g}" width="100%" height="1"/>')
    parts.append(_course(bars, step, top_value))
    label = f"Trials ({unit}): {'; '.join(bar.note for bar in bars) or 'none yet'}"
    return Svg(
        f'<svg class="trials" width="100%" height="{_HEIGHT:g}" role="group" aria-label="{escape(label)}">'
        f"{''.join(parts)}</svg>"
    )


def _level(value: float, top_value: float) -> float:
    return _HEIGHT - _FOOT - (_HEIGHT - _FOOT - _TOP) * value / top_value


def _bar(bar: TrialBar, left: float, step: float, top_value: float, is_named: bool) -> str:
    foot = _HEIGHT - _FOOT
    x, width, middle = f"{left + 0.14 * step:.2f}%", f"{0.72 * step:.2f}%", f"{left + step / 2:.2f}%"
    marks = [f'<rect class="hit" x="{left:.2f}%" width="{step:.2f}%" height="{_HEIGHT:g}"/>']
    if bar.value:
        top, fill = _level(bar.value, top_value), "f3" if bar.is_best else FILLS.get(bar.role, "f1")
        marks.append(
            f'<rect class="{fill}" x="{x}" width="{width}" y="{length(top)}" height="{length(foot - top)}" rx="2"/>'
        )
        if is_named or bar.is_best:
            kind, above = "b" if bar.is_best else "v", _level(bar.expected, top_value) if bar.expected else top
            # A prediction just above the bar would cross the number.
            top = min(top, above) if top - above < _CLOSE else top
            marks.append(f'<text class="{kind}" x="{middle}" y="{length(top - 6)}" text-anchor="middle">'
                         f"{escape(significant(bar.value))}</text>")  # fmt: skip
    else:
        is_active = bar.state in ("queued", "dispatched", "running")
        kind = "running" if is_active else "lost"
        top = _level(bar.expected, top_value) if bar.expected else foot - 24
        marks.append(
            f'<rect class="{kind}" x="{x}" width="{width}" y="{length(top)}" height="{length(foot - top)}" rx="2"/>'
        )
        text = "OOM" if bar.state == "oom" else bar.state
        marks.append(f'<text x="{middle}" y="{foot - 6:g}" text-anchor="middle">{escape(text)}</text>')
    if bar.expected and bar.value:
        level = length(_level(bar.expected, top_value))
        wide = f'x="{left + 0.04 * step:.2f}%" width="{0.92 * step:.2f}%"'
        marks.append(f'<rect class="expected" {wide} y="{level}" height="2"/>')
    marks.append(f'<text x="{middle}" y="{foot + 16:g}" text-anchor="middle">{bar.number}</text>')
    return f'<a href="{escape(bar.href)}"><title>{escape(bar.note)}</title>{"".join(marks)}</a>'


def _course(bars: Sequence[TrialBar], step: float, top_value: float) -> str:
    """Draw the best value so far of the search as a step line."""
    best, pieces = 0.0, []
    for place, bar in enumerate(bars):
        before = best
        best = max(best, bar.value or 0.0) if bar.role == "search" else best
        if best:
            level = length(_level(best, top_value) - 1)
            pieces.append(f'<rect class="best" x="{place * step:.2f}%" width="{step:.2f}%" y="{level}" height="2"/>')
        if best > before > 0:
            upper, lower = _level(best, top_value), _level(before, top_value)
            rise = f'y="{length(upper - 1)}" height="{length(lower - upper + 2)}"'
            pieces.append(f'<rect class="best" x="{place * step:.2f}%" width="2" {rise}/>')
    return f'<g aria-hidden="true">{"".join(pieces)}</g>'
