"""The step of a run as one bar whose parts add up, with the bar of a run that was tried on the same scale.

Lengths are shares of the width, so that texts keep their size on wide screens; they are placed for `NOMINAL_PX`.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import accumulate, pairwise
from statistics import fmean
from typing import NamedTuple

from parlab.charts.svg import CHARACTER_PX, Svg, length

NOMINAL_PX = 1010.0
"""Width for which texts are placed; in a narrower bar they are cut at the end of their part."""
_TOP, _HEIGHT, _ROW = 20.0, 52.0, 14.0
_LOW = 14.0
"""Height of the bar of another run (px)."""
_INSET, _GAP = 8.0, 10.0
_LIFT = 9.0
"""How much higher names stand whose lines are not upright (px)."""
_UPRIGHT, _FAR = 0.02, 0.16
"""How far a name may stand from the middle of its part, as a share of the width: with an upright line, and beside
the other names; names that would stand farther away stand in rows."""
TOLD = 0.005
"""Share of the step from which a part is named; a smaller one tells its name on hover and in the table of terms."""
HATCHED = "hatched"


class Look(NamedTuple):
    """How a term is named and filled."""

    title: str
    fill: str
    """A class of face.css, or HATCHED."""
    opacity: float = 1.0

    @property
    def text(self) -> str:
        # A pale fill is dark where the page is dark.
        return "v" if self.fill == HATCHED or self.opacity < 1 else "on" if self.fill == "f1" else "ond"


LOOKS = {
    "ideal": Look("Useful", "f3"),
    "matrix_rate": Look("Matrix rate", "f6"),
    "kernels": Look("Other kernels", "f1"),
    "host": Look("Host", "f4"),
    "compute": Look("Compute", "f3"),
    "recompute": Look("Recomputation", "f5"),
    "bubble": Look("Bubble", "f7"),
    "tensor": Look("Tensor parallel", "f2", 0.75),
    "context": Look("Context parallel", "f2", 0.7),
    "pipeline": Look("Pipeline", "f2", 0.6),
    "data": Look("Gradients", "f2", 0.6),
    "expert": Look("Experts", "f2", 0.5),
    "straggler": Look("Slowest rank", "f2"),
    "optimizer": Look("Optimizer", "f4", 0.7),
    "loading": Look("Data loading", "f8"),
    "logging": Look("Logging", "f7", 0.7),
    "fixed": Look("Fixed", "f7", 0.5),
    "unexplained": Look("Unexplained", HATCHED),
}
"""By key of the terms of a waterfall; one meaning of each colour on all pages."""


class Part(NamedTuple):
    key: str
    seconds: float
    text: str
    """Its time in the unit of the step: the texts of all parts add up to that of the step."""
    note: str = ""
    """All that is known of it, for the pointer."""

    @property
    def look(self) -> Look:
        return LOOKS[self.key]

    @property
    def is_written(self) -> bool:
        """Whether its text is more than a zero."""
        return bool(self.text.strip("0.,"))


class StepBar(NamedTuple):
    caption: str
    total_s: float
    total: str
    """With its unit."""
    unit: str
    parts: Sequence[Part]

    @property
    def drawn(self) -> list[Part]:
        return [part for part in self.parts if part.seconds > 0]

    @property
    def extent_s(self) -> float:
        """Length of the bar: more than the step if its parts add up to more."""
        return max(self.total_s, sum(part.seconds for part in self.drawn))


class _Place(NamedTuple):
    part: Part
    begin: float
    share: float

    @property
    def middle(self) -> float:
        return self.begin + self.share / 2


def _percent(share: float) -> str:
    return f"{100 * share:.3f}%"


def places(bar: StepBar, scale_s: float) -> list[_Place]:
    """Return where each part begins and how long it is, as shares of the width."""
    begin, placed = 0.0, []
    for part in bar.drawn:
        placed.append(_Place(part, begin, part.seconds / scale_s))
        begin += part.seconds / scale_s
    return placed


def _fits(place: _Place) -> bool:
    return place.share * NOMINAL_PX >= CHARACTER_PX * len(place.part.look.title) + 2 * _INSET


def _fill(look: Look, hatch: str) -> str:
    if look.fill == HATCHED:
        return f'fill="url(#{hatch})"'
    return f'class="{look.fill}"' + (f' opacity="{look.opacity:g}"' if look.opacity < 1 else "")


def hatch_pattern(name: str) -> str:
    """Return the pattern of what no term explains, and of waiting."""
    return (
        f'<defs><pattern id="{name}" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        '<rect width="6" height="6" fill="var(--sunken)"/>'
        '<path d="M0 0V6" stroke="var(--s7)" stroke-width="2" opacity=".6"/></pattern></defs>'
    )


def step_bar(bar: StepBar, scale_s: float, terms: str) -> Svg:
    """Draw a step as a bar; a part links to its definition at `terms` (`…/time/`)."""
    placed = places(bar, scale_s)
    small = [place for place in placed if not _fits(place)]
    over = [
        _Place(part, bar.total_s / scale_s, (bar.extent_s - bar.total_s) / scale_s)
        for part in bar.parts
        if part.seconds < 0
    ]
    written = [place for place in [*small, *over] if place.part.is_written]
    told = [place for place in written if abs(place.part.seconds) >= TOLD * bar.total_s]
    above = _callouts(bar, told, scale_s)
    lift = _LIFT if any(abs(each.at - each.place.middle) > _UPRIGHT for each in above) else 0.0
    top = _TOP + lift + _ROW * max((each.row for each in above), default=0)
    parts = [hatch_pattern("hatch-bar"), _head(bar, top, top - lift, scale_s)]
    parts += [_part(place, bar.unit, top, terms) for place in placed]
    parts += [_callout(each, top, top - lift) for each in above]
    return _svg(top + _HEIGHT + 1, f"{bar.caption}: {_sum(bar)}", parts)


def _sum(bar: StepBar) -> str:
    return f"{bar.total} = {', '.join(f'{part.look.title} {part.text}' for part in bar.parts)}"


def _svg(height: float, label: str, parts: Sequence[str]) -> Svg:
    size = f'width="100%" height="{length(height)}"'
    return Svg(f'<svg class="stepbar" {size} role="group" aria-label="{escape(label)}">{"".join(parts)}</svg>')


def _head(bar: StepBar, top: float, above: float, scale_s: float) -> str:
    end = bar.total_s / scale_s
    mark = "" if bar.extent_s <= bar.total_s * 1.001 else _line(end, end, top - 4, top + _HEIGHT, "st0")
    foot = length(above - 10)
    return (
        f'<text x="0" y="{foot}">{escape(bar.caption)}</text>'
        f'<text class="b" x="{_percent(end)}" y="{foot}" text-anchor="end">{escape(bar.total)}</text>{mark}'
    )


def _line(begin: float, end: float, top: float, foot: float, kind: str) -> str:
    across = f'x1="{_percent(begin)}" x2="{_percent(end)}"'
    return f'<line class="{kind}" {across} y1="{length(top)}" y2="{length(foot)}"/>'


def _part(place: _Place, unit: str, top: float, terms: str) -> str:
    part, look = place.part, place.part.look
    texts = ""
    if _fits(place):
        texts = (
            f'<text class="{look.text} name" x="{_INSET:g}" y="21">{escape(look.title)}</text>'
            f'<text class="{look.text} number" x="{_INSET:g}" y="40">{escape(part.text)}'
            f'<tspan class="unit" dx="2">{escape(unit)}</tspan></text>'
        )
    box = f'x="{_percent(place.begin)}" y="{length(top)}" width="{_percent(place.share)}" height="{_HEIGHT:g}"'
    return (
        f'<a href="{escape(terms)}#term-{part.key}" data-term="{part.key}"><title>{escape(part.note)}</title>'
        f'<svg {box}><rect {_fill(look, "hatch-bar")} width="100%" height="{_HEIGHT:g}"/>'
        f'<rect class="edge" x="100%" width="1" height="{_HEIGHT:g}" transform="translate(-1)"/>{texts}</svg></a>'
    )


class _Callout(NamedTuple):
    """The name of a part that is too short for it."""

    place: _Place
    at: float
    row: int

    @property
    def half(self) -> float:
        return _half(self.place)


def _half(place: _Place) -> float:
    return CHARACTER_PX * len(_callout_text(place.part)) / NOMINAL_PX / 2


def _callouts(bar: StepBar, small: Sequence[_Place], scale_s: float) -> list[_Callout]:
    """Place the names of short parts above the bar: side by side where there is room, else in rows."""
    first = (CHARACTER_PX * len(bar.caption) + _GAP) / NOMINAL_PX
    last = bar.total_s / scale_s - (CHARACTER_PX * len(bar.total) + _GAP) / NOMINAL_PX
    return _side_by_side(small, first, last) or _in_rows(small, first, last)


def _side_by_side(small: Sequence[_Place], first: float, last: float) -> list[_Callout]:
    """Return the names in one row, moved apart by as little as they need; none if one would be far from its part."""
    gap = _GAP / NOMINAL_PX
    at = _spread([place.middle for place in small], [2 * _half(place) + gap for place in small])
    for number in reversed(range(len(at))):
        at[number] = min(at[number], last - _half(small[number]))
        last = at[number] - _half(small[number]) - gap
    placed = [_Callout(place, new, 0) for place, new in zip(small, at, strict=True)]
    is_near = all(abs(each.at - each.place.middle) <= _FAR and each.at - each.half >= first for each in placed)
    return placed if is_near and _is_free(placed) else []


def _spread(middles: Sequence[float], widths: Sequence[float]) -> list[float]:
    """Move middles apart so that widths do not overlap; those that touch stay around the mean of their places."""
    shifts = list(accumulate([0.0, *((one + two) / 2 for one, two in pairwise(widths))]))[: len(middles)]
    groups: list[list[float]] = []
    for middle, shift in zip(middles, shifts, strict=True):
        groups.append([middle - shift])
        while len(groups) > 1 and fmean(groups[-2]) > fmean(groups[-1]):
            groups[-2:] = [[*groups[-2], *groups[-1]]]
    starts = [fmean(group) for group in groups for _ in group]
    return [start + shift for start, shift in zip(starts, shifts, strict=True)]


def _is_free(placed: Sequence[_Callout]) -> bool:
    return all(before.at + before.half <= after.at - after.half for before, after in pairwise(placed))


def _in_rows(small: Sequence[_Place], first: float, last: float) -> list[_Callout]:
    """Return the names above their parts, in as few rows as they need."""
    ends, placed = [first], list[_Callout]()
    for place in small:
        half = _half(place)
        is_free = [
            place.middle - half >= end and (at > 0 or place.middle + half <= last) for at, end in enumerate(ends)
        ]
        row = next((at for at, free in enumerate(is_free) if free), None)
        if row is None:
            ends.append(0.0)  # a further row, above
            row = len(ends) - 1
        at = min(max(place.middle, ends[row] + half), 1.0 - half)
        ends[row] = at + half + _GAP / NOMINAL_PX
        placed.append(_Callout(place, at, row))
    return placed


def _callout_text(part: Part) -> str:
    return f"{part.look.title} {part.text}"


def _callout(callout: _Callout, top: float, above: float) -> str:
    foot, text = above - 10 - _ROW * callout.row, escape(_callout_text(callout.place.part))
    return _line(callout.at, callout.place.middle, foot + 4, top, "st0 leader") + (
        f'<text x="{_percent(callout.at)}" y="{length(foot)}" text-anchor="middle">{text}</text>'
    )


def tried_bar(bar: StepBar, scale_s: float, change: str, kind: str) -> Svg:
    """Draw the step of a changed run below; `change` is its difference, `kind` the class of its text."""
    end = bar.extent_s / scale_s
    parts = [hatch_pattern("hatch-tried")]
    for place in places(bar, scale_s):
        box = f'x="{_percent(place.begin)}" width="{_percent(place.share)}" height="{_LOW:g}"'
        title = f"<title>{escape(place.part.note)}</title>"
        parts.append(f"<rect {box} {_fill(place.part.look, 'hatch-tried')}>{title}</rect>")
    is_long = end > 0.86
    where = f'x="{_percent(1.0 if is_long else end)}" y="{30 if is_long else 11}"'
    anchor = ' text-anchor="end"' if is_long else f' dx="{_INSET:g}"'
    told = f'<tspan class="{kind}" dx="6">{escape(change)}</tspan>'
    parts.append(f'<text class="b" {where}{anchor}>{escape(bar.total)}{told}</text>')
    parts.append(f'<text x="0" y="30">{escape(bar.caption)}</text>')
    return _svg(34, f"{bar.caption}: {_sum(bar)}, {change}", parts)


def term_bar(part: Part, longest_s: float) -> Svg:
    """Draw one part as a bar of its own with its number, for narrow screens."""
    share = 0.84 * max(0.0, part.seconds) / longest_s if longest_s else 0.0
    number = f'<text class="b" x="{_percent(share)}" dx="6" y="12">{escape(part.text)}</text>'
    rect = f'<rect {_fill(part.look, "hatch-term")} width="{_percent(share)}" height="16"/>'
    pattern = hatch_pattern("hatch-term") if part.look.fill == HATCHED else ""
    return Svg(f'<svg class="termbar" width="100%" height="16" aria-hidden="true">{pattern}{rect}{number}</svg>')


class Chip(NamedTuple):
    """Advice below the term that it would shrink."""

    middle: float
    """Where its term is, as a share of the width."""
    text: str
    detail: str = ""
    """The interval, which is left out where there is no room."""


def chip_places(chips: Sequence[Chip]) -> list[tuple[float, float]]:
    """Return where each chip begins and how wide it is, in pixels of NOMINAL_PX; they keep their order."""
    widths = [6.6 * len(chip.text + chip.detail) + 48 for chip in chips]
    middles = _spread([chip.middle * NOMINAL_PX for chip in chips], [width + _GAP for width in widths])
    starts = [middle - width / 2 for middle, width in zip(middles, widths, strict=True)]
    least = 0.0
    for number, width in enumerate(widths):
        starts[number] = max(starts[number], least)
        least = starts[number] + width + _GAP
    limit = NOMINAL_PX
    for number in reversed(range(len(starts))):
        starts[number] = min(starts[number], limit - widths[number])
        limit = starts[number] - _GAP
    return list(zip(starts, widths, strict=True))
