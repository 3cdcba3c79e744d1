"""What the drawings of panels share: rows of runs with their names, and labels that do not cover each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from itertools import takewhile
from typing import NamedTuple

from parlab.charts.format import Unit
from parlab.charts.measures import Measure
from parlab.charts.points import Spread
from parlab.charts.svg import CHARACTER_PX, Canvas, Margins, fitting, length, text_px

from .shown import ShownRun, spread_of

_CUTS = 3
"""Names that differ at several places are cut again."""
MAX_ROWS = 60
"""Rows of a panel; the list beside it has all runs."""
ROW, FOOT = 22, 24
LABEL_ROW = 13
"""Height of a label, in pixels."""


class Runs(NamedTuple):
    """The runs of an experiment, the best first, and the number that they are compared by."""

    shown: Sequence[ShownRun]
    measure: Measure
    unit: Unit

    def spread(self, run: ShownRun) -> Spread | None:
        return spread_of(run, self.measure)

    @property
    def measured(self) -> list[ShownRun]:
        return [run for run in self.shown if self.measure.value(run.point) is not None]

    @property
    def fields(self) -> list[str]:
        """The fields in which runs differ, in the order of their names."""
        return list(dict.fromkeys(field for run in self.shown for field in run.values))


class Size(NamedTuple):
    width: float
    height: float


def run_group(run: ShownRun, markup: str, kind: str = "") -> str:
    """Wrap the marks of a run, so that the list of runs can act on them."""
    named = f' class="{kind}"' if kind else ""
    return f'<g{named} data-run="{run.number}">{markup}</g>'


def text_at(left: float, top: float, text: str, kind: str = "", anchor: str = "start", title: str = "") -> str:
    """Return a text at pixels; `title` is shown on hover."""
    told = f"<title>{escape(title)}</title>" if title else ""
    place = f'x="{length(left)}" y="{length(top)}" text-anchor="{anchor}"'
    return f'<text class="{kind}" {place}>{escape(text)}{told}</text>'


def shortened(text: str, width: float) -> str:
    if text_px(text) <= width:
        return text
    kept = fitting(text, width - CHARACTER_PX)
    return f"{kept.rstrip() or text[:3]}\N{HORIZONTAL ELLIPSIS}"


def told_apart(names: Sequence[str], width: float) -> list[str]:
    """Shorten names so that different ones stay different: of those that end alike, the common beginning goes."""
    cut = [shortened(name, width) for name in names]
    for _ in range(_CUTS):
        for text in {text for text in cut if cut.count(text) > 1}:
            places = [place for place, other in enumerate(cut) if other == text]
            first, last = min(names[place] for place in places), max(names[place] for place in places)
            if first == last:
                continue
            common = len([*takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False))])
            begin = max(first.rfind(mark, 0, common) for mark in (" ", ",", "/", "-", "_")) + 1
            for place in places:
                cut[place] = shortened(f"\N{HORIZONTAL ELLIPSIS}{names[place][begin:]}", width)
    return cut


class Rows(NamedTuple):
    """A figure with a row for each run."""

    canvas: Canvas
    left: float
    row: float
    names: Mapping[int, str]
    """The runs as there is room for them, by number."""

    def top(self, place: int) -> float:
        return self.canvas.margins.top + (place + 0.5) * self.row

    def label(self, run: ShownRun, place: int) -> str:
        shown = self.names[run.number]
        kind = "b" if place == 0 else "v"
        return text_at(self.left - 8, self.top(place) + 3.5, shown, kind, "end", "" if shown == run.name else run.name)


def rows_of(runs: Sequence[ShownRun], size: Size, scale: tuple[float, float], right: float = 44) -> Rows:
    """Return a figure with a row for each run and a scale across; many rows make it higher than asked."""
    longest = max((text_px(run.name) for run in runs), default=0.0)
    left = min(longest + 12, size.width * 0.42)
    is_high = len(runs) * ROW + FOOT > size.height
    top, height = (FOOT, len(runs) * ROW + 2 * FOOT) if is_high else (2, size.height)
    canvas = Canvas(size.width, height, scale, margins=Margins(left, right, top, FOOT))
    names = told_apart([run.name for run in runs], left - 8)
    by_number = {run.number: name for run, name in zip(runs, names, strict=True)}
    return Rows(canvas, left, (height - FOOT - top) / max(1, len(runs)), by_number)


def spread_apart(tops: Sequence[float], step: float = LABEL_ROW) -> list[float]:
    """Move labels apart so that each has its own height, in the order of their heights."""
    order = sorted(range(len(tops)), key=lambda place: tops[place])
    placed = list(tops)
    above = float("-inf")
    for place in order:
        placed[place] = max(tops[place], above + step)
        above = placed[place]
    moved = sum(new - old for new, old in zip(placed, tops, strict=True)) / max(1, len(tops))
    return [top - moved for top in placed]
