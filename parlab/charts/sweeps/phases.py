"""Time per phase of a step: the timers of each run, stacked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from parlab.charts import theme
from parlab.charts.format import quantity, unit_for
from parlab.charts.labels import label_stack
from parlab.charts.measures import AUTO, Available, Options
from parlab.charts.points import RunPoint, Timer, fastest, with_kinds
from parlab.charts.repeats import error_bars
from parlab.charts.theme import Drawing, Table

# Compute has one colour per direction; a send is hatched in the colour of the receive.
PHASES = {
    "forward-compute": (theme.SKY, ""),
    "backward-compute": (theme.GREEN, ""),
    "forward-recv": (theme.ORANGE, ""),
    "forward-send": (theme.ORANGE, "/"),
    "backward-recv": (theme.PURPLE, ""),
    "backward-send": (theme.PURPLE, "/"),
    "optimizer": (theme.YELLOW, ""),
}
TITLE = "Time per phase"
OTHER = "not timed"
SPARE = [theme.BLUE, theme.VERMILLION, theme.GREEN, theme.ORANGE]


def parts(timers: Mapping[str, Timer]) -> dict[str, Timer]:
    """Return the timers without those nested in others, so that they can be stacked.

    Megatron's timers nest: `optimizer` contains `optimizer-*`, `forward-backward` and
    `forward-backward-...` contain the passes, `batch-generator` is part of `forward-compute`.
    """
    outer = {}
    for name, timer in timers.items():
        inside_optimizer = name.startswith("optimizer-") and "optimizer" in timers
        contains_passes = name.startswith("forward-backward") and "forward-compute" in timers
        inside_forward = name == "batch-generator" and "forward-compute" in timers
        if not (inside_optimizer or contains_passes or inside_forward):
            outer[name] = timer
    phases = [name for name in PHASES if name in outer]
    return {name: outer[name] for name in [*phases, *(name for name in outer if name not in PHASES)]}


def missing(available: Available) -> str:
    """Say why there are no phase times to draw; empty where there are."""
    points = available.points
    if any(point.timers for point in points):
        return ""
    if any(point.is_published for point in points):
        return "the published figures do not include timers"
    return "the runs printed no timers" if any(p.state == "finished" for p in points) else "no run has finished"


def figure(points: Sequence[RunPoint], options: Options = AUTO) -> Drawing:
    """Draw the seconds of each phase per step (y), stacked, for each run (x); the untimed rest of a step is grey.

    With `as_share` each bar is 100 % high, so that runs with very different step times can be compared.
    """
    if reason := missing(Available(points)):
        return theme.missing(TITLE, reason)
    timed = {point.number: parts(point.timers) for point in points if point.timers}
    measured = [point for point in points if point.number in timed]
    drawn, left_out = fastest(measured)
    return Drawing(
        _bar_figure(drawn, timed, options), _longest_phase_caption(measured, timed) + left_out, _phases_table(measured)
    )


def _bar_figure(measured: Sequence[RunPoint], timed: Mapping[int, Mapping[str, Timer]], options: Options) -> go.Figure:
    unit = unit_for((point.step_time_s.median if point.step_time_s else None for point in measured), "s")
    factors = [_whole(point, timed[point.number]) / 100 if options.as_share else unit.factor for point in measured]
    drawing = go.Figure(
        layout=theme.layout(
            title=TITLE,
            subtitle=_subtitle(measured, options),
            x="Run",
            y="Share of the step (%)" if options.as_share else f"Time per step ({unit.name})",
            barmode="stack",
            bargap=0.35,
            xaxis=theme.runs_axis([point.short_label for point in measured]),
            yaxis={"rangemode": "tozero", **({"range": [0, 100]} if options.as_share else {})},
        )
    )
    for name, (colour, hatch) in _looks(timed).items():
        timers = [timed[point.number].get(name) for point in measured]
        if any(timers):
            drawing.add_trace(_bars(measured, name, timers, factors, colour, hatch))
    rest = [_rest(point, timed[point.number]) for point in measured]
    if any(rest):
        drawing.add_trace(_bars(measured, OTHER, rest, factors, theme.GREY, ""))
    if not options.as_share:
        # On top of the stack: the range of the whole step over the repeats.
        drawing.data[-1].error_y = error_bars(measured, _step_s, unit.factor)
    drawing.update_layout(showlegend=True)
    label_stack(drawing)
    return drawing


def _subtitle(measured: Sequence[RunPoint], options: Options) -> str:
    which = "per step: median over steps, mean over all ranks; nested timers are not drawn"
    if not any(point.repeats for point in measured):
        return which
    return f"{which}; mean of the repeats" + ("" if options.as_share else ", bars: range of their steps")


def _step_s(point: RunPoint) -> float | None:
    return point.step_time_s.median if point.step_time_s else None


def _looks(timed: Mapping[int, Mapping[str, Timer]]) -> dict[str, tuple[str, str]]:
    """Return colour and hatch of each phase: those of PHASES first, then the timers with other names."""
    others = dict.fromkeys(name for timers in timed.values() for name in timers if name not in PHASES)
    return PHASES | {name: (SPARE[index % len(SPARE)], "x") for index, name in enumerate(others)}


def _rest(point: RunPoint, timers: Mapping[str, Timer]) -> Timer | None:
    if point.step_time_s is None:
        return None
    rest = point.step_time_s.median - sum(timer.median for timer in timers.values())
    return Timer(rest, rest, rest) if rest > 0 else None


def _whole(point: RunPoint, timers: Mapping[str, Timer]) -> float:
    """Return the seconds of a step; overlapping phases of several ranks can add up to more than the step time."""
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


def _longest_phase_caption(measured: Sequence[RunPoint], timed: Mapping[int, Mapping[str, Timer]]) -> str:
    slowest = max(measured, key=lambda point: sum(timer.median for timer in timed[point.number].values()))
    name, timer = max(timed[slowest.number].items(), key=lambda item: item[1].median)
    duration = quantity(timer.median, "s", slowest.digits(timer.median))
    return f"Longest: {slowest.full_label}; {name} takes {duration} of its step, averaged over the ranks."


def _phases_table(measured: Sequence[RunPoint]) -> Table:
    axes = list(dict.fromkeys(axis for point in measured for axis in point.values))
    owners = [point for point in measured for _ in point.timers]
    rows = [
        [point.number, *(point.values.get(axis) for axis in axes), point.outcome, name, *timer]
        for point in measured
        for name, timer in point.timers.items()
    ]
    return with_kinds(["run", *axes, "state", "timer", "median_s", "min_s", "max_s"], rows, owners)
