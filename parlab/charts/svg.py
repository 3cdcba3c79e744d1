"""Small figures as inline SVG, drawn by the server so that they stand with the page.

Colours are classes of static/css/face.css (`s1` strokes, `f1` fills), so a figure follows the theme of its page.
Figures that one zooms are Plotly's: see figures.js. Lengths are in pixels of the viewBox; text is 11 px, so a figure is
drawn for the width that it will have.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import NamedTuple

COLOURS = 8
"""Colours of series: s1 to s8."""
_DASHES = ("", "5 3", "1.5 2.5")
CIRCLE, SQUARE, TRIANGLE = range(3)
_TICK_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
CHARACTER_PX = 5.8
"""Mean width of a character of 11 px text."""
_LETTERS_PX = {
    **dict.fromkeys("0123456789", 6.9),
    **dict.fromkeys("ABCDEFGHIJKLNOPQRSTUVXYZ", 7.5),
    **dict.fromkeys("mwMW%@", 9.6),
    **dict.fromkeys(" .,:;|!iljft'()[]", 3.6),
}


def text_px(text: str) -> float:
    """Return about how wide a text is at 11 px, semibold: digits and capitals take more than the mean."""
    return sum(_LETTERS_PX.get(letter, 6.1) for letter in text)


def fitting(text: str, width: float) -> str:
    """Return the beginning of a text that is at most so wide."""
    for place, letter in enumerate(text):
        width -= _LETTERS_PX.get(letter, 6.1)
        if width < 0:
            return text[:place]
    return text


class Svg(str):
    """Markup whose texts were escaped when they were added; templates show it as it is."""

    __slots__ = ()

    def __html__(self) -> str:
        return self


class Look(NamedTuple):
    """How the marks of a series look: the same on every page."""

    colour: int = 1
    """1 to 8: a class of face.css."""
    dash: int = 0
    """0 solid, 1 dashed, 2 dotted."""
    shape: int = CIRCLE

    @property
    def stroke(self) -> str:
        return f"s{self.colour}"

    @property
    def fill(self) -> str:
        return f"f{self.colour}"


class Margins(NamedTuple):
    left: float = 38
    right: float = 10
    top: float = 8
    bottom: float = 24


MARGINS, FIRST = Margins(), Look()


def length(value: float) -> str:
    """Return a length with at most one decimal."""
    return f"{value:.1f}".removesuffix(".0")


def ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Return round numbers in a range, about `count` of them."""
    if not high > low:
        return [low]
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next((part * power for part in _TICK_STEPS if part * power >= rough * 0.999), 10 * power)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]


class Canvas:
    """An SVG figure with linear scales; its methods add marks and return it."""

    def __init__(
        self,
        width: float,
        height: float,
        x: tuple[float, float] = (0, 1),
        y: tuple[float, float] = (0, 1),
        margins: Margins = MARGINS,
    ) -> None:
        self.width, self.height, self.margins = width, height, margins
        self.x_range, self.y_range = _widened(x), _widened(y)
        self._parts: list[str] = []

    def x(self, value: float) -> float:
        low, high = self.x_range
        return self.margins.left + (value - low) / (high - low) * (self.width - self.margins.left - self.margins.right)

    def y(self, value: float) -> float:
        low, high = self.y_range
        inner = self.height - self.margins.top - self.margins.bottom
        return self.height - self.margins.bottom - (value - low) / (high - low) * inner

    def add(self, markup: str) -> Canvas:
        """Add markup whose texts are escaped."""
        self._parts.append(markup)
        return self

    def text(self, left: float, top: float, text: str, anchor: str = "start", kind: str = "") -> Canvas:
        """Write a text at pixels; `kind` is a class: v (value), b (bold), on (on a dark fill)."""
        named = f' class="{kind}"' if kind else ""
        return self.add(
            f'<text{named} x="{length(left)}" y="{length(top)}" text-anchor="{anchor}">{escape(text)}</text>'
        )

    def x_axis(
        self,
        values: Sequence[float] | None = None,
        text: Callable[[float], str] = "{:g}".format,
        title: str = "",
        *,
        has_grid: bool = False,
    ) -> Canvas:
        """Draw the horizontal axis with its ticks; the title stands at its end, in place of a tick that it covers."""
        foot = self.height - self.margins.bottom
        end = self.width - self.margins.right
        room = end - CHARACTER_PX * len(title) - 4 if title else math.inf
        for value in ticks(*self.x_range) if values is None else values:
            left = self.x(value)
            if has_grid:
                self.add(f'<path class="gl" d="M{round(left) + 0.5} {length(self.margins.top)}V{length(foot)}"/>')
            if left + CHARACTER_PX * len(text(value)) / 2 <= room:
                self.text(left, foot + 15, text(value), "middle")
        if not has_grid:
            self.add(f'<path class="ax" d="M{length(self.margins.left)} {round(foot) + 0.5}H{length(end)}"/>')
        return self.text(end, foot + 15, title, "end") if title else self

    def y_axis(self, values: Sequence[float] | None = None, text: Callable[[float], str] = "{:g}".format) -> Canvas:
        for value in ticks(*self.y_range) if values is None else values:
            top = round(self.y(value)) + 0.5
            end = length(self.width - self.margins.right)
            self.add(f'<path class="gl" d="M{length(self.margins.left)} {top}H{end}"/>')
            self.text(self.margins.left - 6, top + 3.5, text(value), "end")
        return self

    def path(self, xs: Iterable[float], ys: Iterable[float]) -> str:
        """Return the points of a line; it breaks where a value is not finite."""
        pieces, is_open = [], False
        for across, up in zip(xs, ys, strict=True):
            if math.isfinite(up):
                pieces.append(f"{'L' if is_open else 'M'}{length(self.x(across))} {length(self.y(up))}")
            is_open = math.isfinite(up)
        return "".join(pieces)

    def line(self, xs: Sequence[float], ys: Sequence[float], look: Look, kind: str = "") -> Canvas:
        dash = f' stroke-dasharray="{_DASHES[look.dash]}"' if look.dash else ""
        return self.add(f'<path class="l {look.stroke} {kind}"{dash} d="{self.path(xs, ys)}"/>')

    def area(self, xs: Sequence[float], ys: Sequence[float], look: Look) -> Canvas:
        """Fill between a line without gaps and the foot of the figure."""
        foot = length(self.y(self.y_range[0]))
        edge = f"{self.path(xs, ys)}L{length(self.x(xs[-1]))} {foot}L{length(self.x(xs[0]))} {foot}Z"
        return self.add(f'<path class="area {look.fill}" d="{edge}"/>')

    def whisker(self, low: float, high: float, top: float, look: Look) -> Canvas:
        """Draw the range of a value at a height in pixels."""
        return self.add(
            f'<path class="wh {look.stroke}" opacity=".55" d="M{length(self.x(low))} {length(top)}'
            f'H{length(self.x(high))}"/>'
        )

    def mark(self, left: float, top: float, look: Look, radius: float = 3.5, title: str = "") -> Canvas:
        """Draw a mark at pixels; `title` shows all digits on hover."""
        return self.add(marker(left, top, look, radius, title))

    def svg(self, label: str, kind: str = "fig") -> Svg:
        """Return the figure; `label` says what it shows to those who cannot see it."""
        size = f'viewBox="0 0 {length(self.width)} {length(self.height)}"'
        size += f' width="{length(self.width)}" height="{length(self.height)}"'
        return Svg(f'<svg class="{kind}" {size} role="img" aria-label="{escape(label)}">{"".join(self._parts)}</svg>')


def _widened(ends: tuple[float, float]) -> tuple[float, float]:
    """Return a range that has an extent: a constant value lies in its middle."""
    low, high = ends
    if high > low:
        return low, high
    half = abs(low) * 0.05 or 1.0
    return low - half, low + half


def marker(left: float, top: float, look: Look, radius: float = 3.5, title: str = "") -> str:
    """Return the mark of a series: a circle, square or triangle with a rim in the colour of the page."""
    rim = 'stroke="var(--surface)" stroke-width="1.5"'
    told = f"<title>{escape(title)}</title>" if title else ""
    if look.shape == CIRCLE:
        return f'<circle class="{look.fill}" cx="{length(left)}" cy="{length(top)}" r="{radius}" {rim}>{told}</circle>'
    if look.shape == SQUARE:
        side = length(2 * radius)
        place = f'x="{length(left - radius)}" y="{length(top - radius)}" width="{side}" height="{side}" rx="1"'
        return f'<rect class="{look.fill}" {place} {rim}>{told}</rect>'
    tip, foot, half = length(top - radius - 1), length(top + radius), radius + 0.8
    corners = f"M{length(left)} {tip}L{length(left + half)} {foot}H{length(left - half)}Z"
    return f'<path class="{look.fill}" d="{corners}" {rim}>{told}</path>'


def line_key(look: Look) -> Svg:
    """Return the line and mark of a series as the key of a list."""
    dash = f' stroke-dasharray="{_DASHES[look.dash]}"' if look.dash else ""
    line = f'<path class="l {look.stroke}"{dash} d="M1 7H17"/>'
    size = 'class="key" viewBox="0 0 18 14" width="18" height="14" aria-hidden="true"'
    return Svg(f"<svg {size}>{line}{marker(9, 7, look)}</svg>")


def sparkline(
    values: Sequence[float],
    label: str,
    *,
    width: float = 228,
    height: float = 60,
    look: Look = FIRST,
    is_filled: bool = True,
    x: Sequence[float] | None = None,
    x_range: tuple[float, float] | None = None,
) -> Svg:
    """Draw a series as a line without axes, with a point at its end; gaps stay where values are not finite."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return Canvas(width, height).svg(label)
    across = list(range(len(values))) if x is None else list(x)
    ends = x_range or (across[0], across[-1] if across[-1] > across[0] else across[0] + 1)
    canvas = Canvas(width, height, ends, (min(finite), max(finite)), Margins(2, 5, 4, 4))
    if is_filled and len(finite) == len(values):
        canvas.area(across, values, look)
    canvas.line(across, values, look)
    last = max(place for place, value in enumerate(values) if math.isfinite(value))
    return canvas.mark(canvas.x(across[last]), canvas.y(values[last]), look, 3).svg(label)


def ring(share: float | None, label: str, *, size: float = 30, look: Look = FIRST) -> Svg:
    """Draw a share between 0 and 1 as a part of a ring; None as an empty ring."""
    turn = 2 * math.pi * 13
    circle = '<circle cx="17" cy="17" r="13" fill="none" stroke-width="4"'
    part = min(1.0, max(0.0, share or 0.0)) * turn
    filled = (
        f'{circle} class="{look.stroke}" stroke-dasharray="{part:.1f} {turn:.1f}" transform="rotate(-90 17 17)"/>'
        if part
        else ""
    )
    return Svg(
        f'<svg class="ring" viewBox="0 0 34 34" width="{size:g}" height="{size:g}" role="img"'
        f' aria-label="{escape(label)}">{circle} stroke="var(--line)"/>{filled}</svg>'
    )


def progress_bar(share: float, label: str) -> Svg:
    """Draw a share between 0 and 1 as a bar of the full width."""
    part = 100 * min(1.0, max(0.0, share))
    return Svg(
        '<svg class="progress-bar" viewBox="0 0 100 4" width="100%" height="4" preserveAspectRatio="none" role="img"'
        f' aria-label="{escape(label)}"><rect class="fg" width="100" height="4" rx="2"/>'
        f'<rect class="fa" width="{part:.1f}" height="4" rx="2"/></svg>'
    )


def squares(shares: Sequence[float | None], label: str, *, count: int = 24, size: float = 10) -> Svg:
    """Draw shares between 0 and 1 as squares, the newest at the right; None as an empty place."""
    shown = [*([None] * (count - len(shares))), *shares[-count:]]
    step = size - 1
    parts = [
        f'<rect class="q{min(5, int(6 * min(1.0, max(0.0, share))))}" x="{place * step:g}" y="0" width="{size - 3:g}"'
        f' height="{size:g}" rx="1"><title>{100 * share:.0f} %</title></rect>'
        for place, share in enumerate(shown)
        if share is not None
    ]
    width = count * step - 2
    size_text = f'viewBox="0 0 {width:g} {size:g}" width="{width:g}" height="{size:g}" preserveAspectRatio="xMaxYMid"'
    return Svg(f'<svg class="squares" {size_text} role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>')
