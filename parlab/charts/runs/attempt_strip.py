"""The attempts of a chain on one line of time: gaps, limits, preemptions and checkpoints.

Lengths are shares of the width. Colour says how an attempt ended, and a mark at its end says it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from parlab.charts.svg import Svg, length

HEIGHT, _TOP = 22.0, 4.0
_LEAST = 0.002
"""Least share of the width of an attempt."""


class Look(NamedTuple):
    """How an attempt is drawn by its state."""

    title: str
    fill: str
    """A class of face.css; empty: an outline."""
    mark: str = ""
    """At its end: limit, bad, or none."""


LOOKS = {
    "running": Look("running", "fa"),
    "finished": Look("finished", "f3"),
    "checkpointed": Look("checkpointed", "f3", "limit"),
    "time-limit": Look("time limit", "f4", "limit"),
    "preempted": Look("preempted", "f2", "bad"),
    "lost": Look("lost", "f7", "bad"),
    "failed": Look("failed", "fb", "bad"),
    "oom": Look("out of memory", "fb", "bad"),
    "cancelled": Look("cancelled", "f7"),
}
"""By state; an attempt that has not started is not drawn."""


class Bar(NamedTuple):
    """An attempt: Unix seconds."""

    number: int
    state: str
    starts_s: float
    ends_s: float
    href: str
    note: str
    """All that is known of it, for the pointer and for screen readers."""


def attempt_strip(bars: Sequence[Bar], ends: tuple[float, float], label: str) -> Svg:
    """Draw attempts between two moments; what is between them is a gap."""
    first, last = ends
    span = max(last - first, 1e-9)
    parts = [f'<rect class="gap" width="100%" y="{length(_TOP)}" height="{length(HEIGHT - 2 * _TOP)}"/>']
    for bar in bars:
        begin = min(1.0 - _LEAST, max(0.0, (bar.starts_s - first) / span))
        share = min(1.0 - begin, max(_LEAST, (bar.ends_s - bar.starts_s) / span))
        parts.append(_bar(bar, begin, share))
    return Svg(
        f'<svg class="attempts" width="100%" height="{length(HEIGHT)}" role="group" aria-label="{escape(label)}">'
        f"{''.join(parts)}</svg>"
    )


def _bar(bar: Bar, begin: float, share: float) -> str:
    look = LOOKS.get(bar.state, LOOKS["running"])
    height = length(HEIGHT - 2 * _TOP)
    box = f'x="{100 * begin:.3f}%" y="{length(_TOP)}" width="{100 * share:.3f}%" height="{height}"'
    mark = ""
    if look.mark:
        # Limits end at a line over the whole height, other ends at a short one below.
        top, foot = (0.0, HEIGHT) if look.mark == "limit" else (HEIGHT - _TOP, HEIGHT)
        at = f'x1="{100 * (begin + share):.3f}%" x2="{100 * (begin + share):.3f}%"'
        mark = f'<line class="{look.mark}" {at} y1="{length(top)}" y2="{length(foot)}"/>'
    return (
        f'<a href="{escape(bar.href)}" aria-label="{escape(bar.note)}"><title>{escape(bar.note)}</title>'
        f'<rect class="{look.fill}" {box}/>{mark}</a>'
    )
