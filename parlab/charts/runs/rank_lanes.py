"""One step of the ranks of a run: its parts as bars, and its timeline, one lane per rank.

Lengths are shares of the width, so that texts keep their size.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from parlab.charts.format import Unit, quantity, significant
from parlab.charts.runs.step_bar import HATCHED, hatch_pattern
from parlab.charts.runs.timeline import Bar
from parlab.charts.svg import Svg, length, ticks

MAX_BARS = 2_000
"""Operations of a lane; a browser draws more of them slowly."""
_NOMINAL_PX = 900.0
_LEAST_PX, _LEAST_HEIGHT = 20.0, 16.0
"""Size from which an operation shows its micro batch."""
_BAR_SHARE = 0.86
"""Share of the width of the longest bar: its number stands at its end."""


class Span(NamedTuple):
    """A part of a step."""

    name: str
    seconds: float
    fill: str
    """A class of face.css, or HATCHED."""


class Lane(NamedTuple):
    rank: int
    node: str
    total_s: float
    spans: Sequence[Span]
    bars: Sequence[Bar] = ()


PHASES = (
    ("forward-compute", "forward", "f1"),
    ("backward-compute", "backward", "f3"),
    ("backward-weight", "weight gradients", "f6"),
    ("-recv", "waiting", "f7"),
    ("barrier", "waiting", "f7"),
    ("wait", "waiting", "f7"),
    ("-send", "send", "f5"),
    ("all-reduce", "communication", "f2"),
    ("all-gather", "communication", "f2"),
    ("reduce-scatter", "communication", "f2"),
    ("broadcast", "communication", "f2"),
    ("-sync", "communication", "f2"),
    ("optimizer", "optimizer", "f4"),
    ("batch-generator", "loading", "f8"),
)
"""End of a timer, what it is part of, and its fill."""
REST = Span("rest", 0.0, HATCHED)
_ORDER = [name for _, name, _ in PHASES]


def phase_of(timer: str) -> tuple[str, str]:
    """Return what a timer is part of, and its fill."""
    return next(((name, fill) for end, name, fill in PHASES if timer.endswith(end)), ("other", "f8"))


def spans_of(timers: dict[str, float], total_s: float) -> list[Span]:
    """Return the parts of a step in their order, and the rest that no timer measures."""
    sums: dict[str, Span] = {}
    for timer, seconds in timers.items():
        name, fill = phase_of(timer)
        before = sums[name].seconds if name in sums else 0.0
        sums[name] = Span(name, before + seconds, fill)
    ordered = sorted(sums.values(), key=lambda span: _ORDER.index(span.name) if span.name in _ORDER else 99)
    rest = total_s - sum(span.seconds for span in ordered)
    return [*ordered, *([REST._replace(seconds=rest)] if rest > 0.01 * total_s else [])]


def _percent(share: float) -> str:
    return f"{100 * share:.3f}%"


def _fill(kind: str, hatch: str) -> str:
    return f'fill="url(#{hatch})"' if kind == HATCHED else f'class="{kind}"'


def _svg(kind: str, height: float, label: str, parts: Sequence[str]) -> Svg:
    size = f'width="100%" height="{length(height)}"'
    return Svg(f'<svg class="{kind}" {size} role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>')


def lane_bar(lane: Lane, longest_s: float, unit: Unit, height: float) -> Svg:
    """Draw the step of a rank as a bar of its parts, with its time at the end."""
    scale, begin, parts = _BAR_SHARE / longest_s if longest_s else 0.0, 0.0, [hatch_pattern("hatch-lane")]
    for span in lane.spans:
        width = max(0.0, span.seconds) * scale
        title = f"<title>{escape(span.name)}: {quantity(span.seconds, 's')}</title>"
        place = f'x="{_percent(begin)}" width="{_percent(width)}" height="{length(height)}"'
        parts.append(f"<rect {place} {_fill(span.fill, 'hatch-lane')}>{title}</rect>")
        begin += width
    text = significant(lane.total_s / unit.factor)
    end = max(begin, lane.total_s * scale)
    parts.append(f'<text class="b" x="{_percent(end)}" dx="6" y="{length(height / 2 + 4)}">{text}</text>')
    return _svg("lane", height, f"rank {lane.rank}: {quantity(lane.total_s, 's')}", parts)


def lane_axis(longest_s: float, unit: Unit, share: float = _BAR_SHARE, has_unit: bool = False) -> Svg:
    """Draw the axis below the bars."""
    if not longest_s:
        return Svg("")
    longest = longest_s / unit.factor
    texts = []
    for value in ticks(0, longest):
        at = value / longest * share
        anchor = "start" if at < 0.02 else "end" if at > 0.98 else "middle"
        texts.append(f'<text x="{_percent(at)}" y="13" text-anchor="{anchor}">{value:g}</text>')
    if has_unit:
        texts.append(f'<text class="unit" x="100%" y="13" text-anchor="end">{escape(unit.name)}</text>')
    return _svg("lane", 18, f"0 to {significant(longest)} {unit.name}", texts)


_KINDS = {
    "forward": ("f1", "forward"),
    "backward": ("f3", "backward"),
    "weight": ("f6", "weight gradients"),
    "optimizer": ("f4", "optimizer"),
    "send": ("f5", "send"),
    "wait-activations": (HATCHED, "waiting for activations"),
    "wait-gradients": (HATCHED, "waiting for gradients"),
}
KEYS = (("b1", "forward"), ("b3", "backward"), ("b5", "send"), ("hatched", "waiting"), ("b4", "optimizer"))
"""Legend of a timeline: class, name."""


def lane_timeline(lane: Lane, longest_s: float, height: float) -> Svg:
    """Draw the operations of a rank over the time of a step; forward and backward passes show their micro batch."""
    parts = [hatch_pattern("hatch-time"), f'<rect class="fg" width="100%" height="{length(height)}"/>']
    # Waiting lies behind the operations, which it may overlap.
    ordered = sorted(lane.bars[:MAX_BARS], key=lambda bar: not bar.kind.startswith("wait"))
    parts += [_operation(bar, longest_s, height) for bar in ordered if bar.kind in _KINDS]
    return _svg("lane", height, f"timeline of rank {lane.rank}", parts)


def _operation(bar: Bar, longest_s: float, height: float) -> str:
    fill, name = _KINDS[bar.kind]
    share = (bar.end_s - bar.begin_s) / longest_s
    batch = "" if bar.micro_batch is None else f", micro batch {bar.micro_batch + 1}"
    title = f"{name}{batch}: {quantity(bar.end_s - bar.begin_s, 's')} from {quantity(bar.begin_s, 's')}"
    place = f'x="{_percent(bar.begin_s / longest_s)}" width="{_percent(share)}" height="{length(height)}"'
    rect = f"<rect {place} {_fill(fill, 'hatch-time')}><title>{escape(title)}</title></rect>"
    is_wide = share * _NOMINAL_PX >= _LEAST_PX and height >= _LEAST_HEIGHT
    return rect + _batch_number(bar, fill, longest_s, height) if is_wide else rect


def _batch_number(bar: Bar, fill: str, longest_s: float, height: float) -> str:
    if bar.kind not in ("forward", "backward") or bar.micro_batch is None:
        return ""
    place = f'x="{_percent((bar.begin_s + bar.end_s) / 2 / longest_s)}" y="{length(height / 2 + 4)}"'
    kind = "on" if fill == "f1" else "ond"
    return f'<text class="{kind}" {place} text-anchor="middle">{bar.micro_batch + 1}</text>'
