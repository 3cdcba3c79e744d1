"""Where the time of a step goes: the timers of each run, stacked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from . import theme
from .format import quantity, unit_for
from .measures import AUTO, Options
from .points import RunPoint, Timer, fastest
from .theme import Drawing, Table

# Computing is one colour per direction; sending is the hatched form of receiving.
PHASES = {
    "forward-compute": (theme.SKY, ""),
    "backward-compute": (theme.GREEN, ""),
    "forward-recv": (theme.ORANGE, ""),
    "forward-send": (theme.ORANGE, "/"),
    "backward-recv": (theme.PURPLE, ""),
    "backward-send": (theme.PURPLE, "/"),
    "optimizer": (theme.YELLOW, ""),
}
OTHER = "not timed"
SPARE = [theme.BLUE, theme.VERMILLION, theme.GREEN, theme.ORANGE]


def parts(timers: Mapping[str, Timer]) -> dict[str, Timer]:
    """Leave out timers that lie inside others, so that the rest may be stacked.

    Megatron's timers nest: `optimizer` holds `optimizer-*`, `forward-backward` and
    `forward-backward-...` hold the passes, `batch-generator` lies inside `forward-compute`.
    """
    kept = {}
    for name, timer in timers.items():
        inside_optimizer = name.startswith("optimizer-") and "optimizer" in timers
        holds_passes = name.startswith("forward-backward") and "forward-compute" in timers
        inside_forward = name == "batch-generator" and "forward-compute" in timers
        if not (inside_optimizer or holds_passes or inside_forward):
            kept[name] = timer
    known = [name for name in PHASES if name in kept]
    return {name: kept[name] for name in [*known, *(name for name in kept if name not in PHASES)]}


def figure(points: Sequence[RunPoint], options: Options = AUTO) -> Drawing:
    """Draw the seconds of each phase per step (y), stacked, for each run (x); what is left of a step is grey.

    Asked for shares, each bar is 100 % high: then runs of very different steps can be read beside each other.
    """
    timed = {point.number: parts(point.timers) for point in points if point.timers}
    measured = [point for point in points if point.number in timed]
    if not measured:
        if any(point.is_published for point in points):
            return theme.nothing("No phase times: these figures were published without them.")
        if any(point.state == "finished" for point in points):
            return theme.nothing("No phase times: the training printed no timers.")
        return theme.nothing("No phase times yet: no run has finished.")
    everything = measured
    measured, left_out = fastest(measured)
    unit = unit_for((point.step_time_s.median if point.step_time_s else None for point in measured), "s")
    factors = [_whole(point, timed[point.number]) / 100 if options.as_share else unit.factor for point in measured]
    drawing = go.Figure(
        layout=theme.layout(
            title="Time per phase",
            subtitle="per step: median over steps, mean over all ranks; what lies inside another timer is not drawn",
            x="Run",
            y="Share of the step (%)" if options.as_share else f"Time per step ({unit.name})",
            barmode="stack",
            bargap=0.35,
            xaxis=theme.runs_axis([point.short_label for point in measured]),
            yaxis={"rangemode": "tozero", **({"range": [0, 100]} if options.as_share else {})},
        )
    )
    names = [name for name in PHASES if any(name in timed[point.number] for point in measured)]
    spare = dict.fromkeys(name for found in timed.values() for name in found if name not in PHASES)
    for name in [*names, *spare]:
        colour, hatch = PHASES.get(name) or (SPARE[list(spare).index(name) % len(SPARE)], "x")
        drawing.add_trace(_bars(measured, name, [timed[p.number].get(name) for p in measured], factors, colour, hatch))
    rest = [_rest(point, timed[point.number]) for point in measured]
    if any(rest):
        drawing.add_trace(_bars(measured, OTHER, rest, factors, theme.GREY, ""))
    drawing.update_layout(showlegend=True)
    return Drawing(drawing, _caption(everything, timed) + left_out, _table(everything))


def _rest(point: RunPoint, timers: Mapping[str, Timer]) -> Timer | None:
    if point.step_time_s is None:
        return None
    left = point.step_time_s.median - sum(timer.median for timer in timers.values())
    return Timer(left, left, left) if left > 0 else None


def _whole(point: RunPoint, timers: Mapping[str, Timer]) -> float:
    """Seconds of a step; where ranks overlap their phases, the phases together may be more."""
    timed = sum(timer.median for timer in timers.values())
    return max(timed, point.step_time_s.median if point.step_time_s else 0.0) or 1.0


def _bars(
    measured: Sequence[RunPoint],
    name: str,
    timers: Sequence[Timer | None],
    factors: Sequence[float],
    colour: str,
    hatch: str,
) -> go.Bar:
    hovers = []
    for point, timer in zip(measured, timers, strict=True):
        if timer is None:
            hovers.append("")
            continue
        numbers = [(name, timer.median, "s")]
        if timer.max > timer.min:
            numbers += [("fastest rank", timer.min, "s"), ("slowest rank", timer.max, "s")]
        hovers.append(point.hover(*numbers))
    return go.Bar(
        x=[point.short_label for point in measured],
        y=[None if t is None else t.median / factor for t, factor in zip(timers, factors, strict=True)],
        name=theme.plain(name),
        marker={"color": colour, "pattern": {"shape": hatch, "solidity": 0.4}},
        hovertext=hovers,
        hoverinfo="text",
        textposition="none",
    )


def _caption(measured: Sequence[RunPoint], timed: Mapping[int, Mapping[str, Timer]]) -> str:
    slowest = max(measured, key=lambda point: sum(timer.median for timer in timed[point.number].values()))
    name, timer = max(timed[slowest.number].items(), key=lambda item: item[1].median)
    return (
        f"Longest in all: {slowest.label} (run {slowest.number}), where {name} takes {quantity(timer.median, 's')}"
        " of a step on average over the ranks."
    )


def _table(measured: Sequence[RunPoint]) -> Table:
    axes = list(dict.fromkeys(axis for point in measured for axis in point.values))
    rows = [
        [point.number, *(point.values.get(axis) for axis in axes), point.outcome, name, *timer]
        for point in measured
        for name, timer in point.timers.items()
    ]
    return Table(["run", *axes, "state", "timer", "median_s", "min_s", "max_s"], rows)
