"""The curves of a comparison: read, cut to the window, thinned, pooled over repeats, drawn."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from parlab.charts.labels import label_ends
from parlab.charts.runs.curves import Curve
from parlab.charts.stacked import stacked
from parlab.charts.sweeps import compare as charts
from parlab.charts.sweeps.compare import CURVES, SUBTITLE, ComparedSeries, Key, Line
from parlab.charts.theme import Drawing
from parlab.ingest.summaries.printed import is_sampled
from parlab.lab.models import Attempt, Run
from parlab.lab.selectors.chains import chains_of
from parlab.publishing.figures.chosen_ranks import AUTOMATIC, MAX_TOGETHER, ChosenRanks
from parlab.publishing.figures.run_curves import series_title
from parlab.publishing.figures.windows import MOST, Seen, Window, seen, share
from parlab.series import joining, store
from parlab.series.columns import Columns

from .repeats import pooled

CURVES_POINTS = 6_000
"""Total number of points of the curves of a panel, shared by all lines."""
MAX_LINES = 256
"""With more lines, of all ranks only the slowest and the fastest of each run are drawn."""
POSITIONS = {"steps": "step %{x}", "time": "%{x} s", "tokens": "%{x} tokens"}
"""Heading of the hover text over an axis."""


def curves_drawing(
    runs: Sequence[Run],
    kinds: Sequence[str],
    window: Window,
    *,
    over: str = "steps",
    is_log: bool = False,
    is_pooled: bool = False,
    chosen_ranks: ChosenRanks = AUTOMATIC,
    places: Collection[int] | None = None,
    named: Callable[[Run], str] | None = None,
) -> Drawing:
    """Draw the curves of some kinds above each other, one line per run, per rank, or per group of repeats.

    A kind is a key of CURVES, or the name that the training gave a series. Of some selected places, the lines keep the
    colours that they have among all runs.
    """
    chosen = range(len(runs)) if places is None else sorted(places)
    current, chains = attempts_and_chains(runs)
    attempts = {pk: place for pk, place in current.items() if place in chosen}
    tokens = [tokens_per_step(run) for run in runs]
    drawings = []
    for kind in kinds:
        metrics = compared_series(kind).metrics
        stated = [run.series_kind(*metrics) for run in runs]
        read = _series_of_attempts(attempts, chains, metrics, window, over, tokens, chosen_ranks)
        x = {key: _x(columns, over, tokens[_place(key)]) for key, columns in read.items()}
        visible = seen(read, window.sized(CURVES_POINTS), x)
        names = {key: line_name(runs, key, named or run_name) for key in [*chosen, *read]}
        lines = _lines(read, visible, names, tokens, stated)
        middle = [float(np.nanmedian(columns.values)) for columns in read.values()]
        if is_pooled:
            lines = pooled(runs, lines)
        drawing = charts.curves(kind, lines, over=over, is_log=is_log, middle=middle, compared=compared_series(kind))
        note = _rank_note(chosen_ranks, read) if drawing.figure is not None else ""
        if drawing.figure is not None:
            label_ends(drawing.figure)
        drawings.append(
            drawing._replace(
                is_thinned=any(series.is_thinned for series in visible.values()), caption=drawing.caption + note
            )
        )
    titles = [compared_series(kind).title for kind in kinds]
    return stacked(
        drawings, ", ".join([titles[0], *(title.lower() for title in titles[1:])]), SUBTITLE, POSITIONS[over]
    )


def compared_series(kind: str) -> ComparedSeries:
    """Return a series of CURVES, or one by the name that the training gave it."""
    is_time = kind.startswith("timer/") or (kind.endswith("_s") and not kind.endswith("_per_s"))
    return CURVES.get(kind) or ComparedSeries(series_title(kind), "s" if is_time else "", (kind,))


def _lines(
    read: Mapping[Key, Columns],
    visible: Mapping[Key, Seen],
    names: Mapping[Key, str],
    tokens: Sequence[float | None],
    kinds: Sequence[str],
) -> dict[Key, Line]:
    """Return the line of each series, and an empty one of each run without any."""
    present = {_place(key) for key in read}
    without = [key for key in names if key not in read and _place(key) not in present]
    return {
        key: Line(
            names[key],
            visible[key].curve if key in visible else Curve([], [], []),
            float(read[key].times[0]) if key in read else None,
            tokens[_place(key)],
            rank=None if isinstance(key, int) else key[1],
            kind=kinds[_place(key)],
        )
        for key in sorted([*read, *without], key=_order)
    }


def run_name(run: Run) -> str:
    return f"{run.experiment.name} #{run.number}"


def line_name(runs: Sequence[Run], key: Key, named: Callable[[Run], str] = run_name) -> str:
    name = named(runs[_place(key)])
    return name if isinstance(key, int) else f"{name} rank {key[1]}"


def _place(key: Key) -> int:
    return key if isinstance(key, int) else key[0]


def _order(key: Key) -> tuple[int, int]:
    return (key, 0) if isinstance(key, int) else key


def _x(columns: Columns, over: str, tokens: float | None) -> NDArray[np.float64]:
    if over == "time":
        seconds: NDArray[np.float64] = columns.times - columns.times[0]
        return seconds
    steps: NDArray[np.float64] = columns.steps.astype(np.float64)
    return steps * (tokens or 1.0) if over == "tokens" else steps


def tokens_per_step(run: Run) -> float | None:
    """Return the tokens of one step from the configuration; None if it does not contain the sizes."""
    batch = (run.resolved.get("train") or {}).get("global_batch_size")
    length = (run.resolved.get("model") or {}).get("sequence_length")
    return float(batch * length) if isinstance(batch, int) and isinstance(length, int) else None


def current_attempts(runs: Sequence[Run]) -> dict[int, int]:
    """Return the current attempt of each run: its id -> the place of the run."""
    return attempts_and_chains(runs)[0]


def attempts_and_chains(runs: Sequence[Run]) -> tuple[dict[int, int], dict[int, list[int]]]:
    """Return the current attempt of each run, its id -> the place of the run; and those before it in a chain."""
    rows = list(Attempt.objects.filter(run__in=runs).values_list("run", "number", "pk"))
    attempts = {(run, number): pk for run, number, pk in rows}
    places = {attempts.get((run.pk, run.attempt_number)): place for place, run in enumerate(runs)}
    return {pk: place for pk, place in places.items() if pk is not None}, chains_of(runs, rows)


def _series_of_attempts(
    attempts: Mapping[int, int],
    chains: joining.Chains,
    metrics: tuple[str, ...],
    window: Window,
    over: str,
    tokens: Sequence[float | None],
    ranks: ChosenRanks,
) -> dict[Key, Columns]:
    """Read the curve of the rank with the highest median of each run, or those of the chosen ranks.

    Only as much detail is read as the figure can show, unless the window has all points.
    """
    series = first_series(attempts, metrics, window, chains)
    chosen = slowest(series) if ranks.is_automatic else _of_ranks(series, ranks)
    is_by_rank = not ranks.is_automatic
    if window.points is None or window.first is None or window.last is None:
        return {_key(attempts[key[0]], key[2], is_by_rank): columns for key, columns in chosen.items()}
    result: dict[Key, Columns] = {}
    for (attempt, metric, rank), columns in chosen.items():
        place = attempts[attempt]
        x = _x(columns, over, tokens[place])
        part, inside = columns, columns.steps[(x >= window.first) & (x <= window.last)]
        if len(inside):
            span = int(inside[-1] - inside[0]) + 1
            steps = math.floor(inside[0]) - span, math.ceil(inside[-1]) + span
            of_chain = {attempt: chains[attempt]} if attempt in chains else {}
            limits = joining.cuts(of_chain, [metric])
            within = {"rank": rank, "first_step": steps[0], "last_step": steps[1]}
            parts = joining.joined_parts(of_chain, limits, is_sampled, [attempt], [metric], 3 * MOST, **within)
            finer = next((detail.columns for detail in parts.values()), columns)
            # The first point gives the start of the time.
            first = columns.take(slice(0, 1))
            part = Columns.joined([first, finer]) if finer.steps[0] > first.steps[0] else finer
        result[_key(place, rank, is_by_rank)] = part
    return result


def _key(place: int, rank: int, is_by_rank: bool) -> Key:
    return (place, rank) if is_by_rank else place


Series = dict[tuple[int, str, int], Columns]


def first_series(
    attempts: Mapping[int, int], metrics: tuple[str, ...], window: Window, chains: joining.Chains | None = None
) -> Series:
    """Read the first of these metrics that each run has; of a chain all attempts as one."""
    own = {last: before for last, before in (chains or {}).items() if last in attempts}
    limits = joining.cuts(own, metrics)
    if window.points is None:
        read = store.read_many(joining.everything_of(own, list(attempts)), metrics)
        return of_first_metric(dict(joining.joined(read, own, limits, is_sampled)), metrics)
    least = share(CURVES_POINTS, len(attempts))
    parts = joining.joined_parts(own, limits, is_sampled, list(attempts), metrics, least)
    return of_first_metric({key: part.columns for key, part in parts.items()}, metrics)


def slowest_ranks(
    runs: Sequence[Run], metrics: tuple[str, ...], points: int, steps: Mapping[str, int] | None = None
) -> dict[int, Columns]:
    """Read a series of each run that has one, by the place of the run: that of the rank with the highest median.

    Of the metrics the first that a run has. At least as many points are read as asked, unless there are fewer; `steps`
    are limits, `first_step` and `last_step`.
    """
    attempts, chains = attempts_and_chains(runs)
    limits = joining.cuts(chains, metrics)
    parts = joining.joined_parts(chains, limits, is_sampled, list(attempts), metrics, points, **(steps or {}))
    series = of_first_metric({key: part.columns for key, part in parts.items()}, metrics)
    return {attempts[attempt]: columns for (attempt, _, _), columns in slowest(series).items()}


def of_first_metric(read: Series, metrics: tuple[str, ...]) -> Series:
    """Keep of each run the first of these metrics that it has."""
    first: dict[int, str] = {}
    for attempt, metric, _rank in read:
        if attempt not in first or metrics.index(metric) < metrics.index(first[attempt]):
            first[attempt] = metric
    return {key: columns for key, columns in read.items() if first[key[0]] == key[1] and _median(columns) is not None}


def _median(columns: Columns) -> float | None:
    finite = columns.values[np.isfinite(columns.values)]
    return float(np.median(finite)) if len(finite) else None


def slowest(series: Series) -> Series:
    """Return the series of the rank with the highest median of each run."""
    best: dict[int, tuple[float, tuple[int, str, int]]] = {}
    for key, columns in series.items():
        middle = _median(columns) or 0.0
        if key[0] not in best or middle > best[key[0]][0]:
            best[key[0]] = (middle, key)
    return {key: series[key] for _, key in best.values()}


def _of_ranks(series: Series, ranks: ChosenRanks) -> Series:
    """Return the chosen ranks; of all ranks of many runs those with the lowest and the highest median."""
    by_attempt: dict[int, list[tuple[int, str, int]]] = {}
    for key in series:
        by_attempt.setdefault(key[0], []).append(key)
    is_cut = ranks.is_all and len(series) > MAX_LINES
    chosen = []
    for keys in by_attempt.values():
        if is_cut and len(keys) > 2:
            ordered = sorted(keys, key=lambda key: _median(series[key]) or 0.0)
            chosen += [ordered[0], ordered[-1]]
        else:
            numbers = ranks.of([rank for _, _, rank in keys]) or []
            chosen += [key for key in keys if key[2] in numbers]
    return {key: series[key] for key in chosen}


def _rank_note(ranks: ChosenRanks, read: Mapping[Key, Columns]) -> str:
    """Return a sentence about ranks that are not drawn; empty without any."""
    by_run: dict[int, set[int]] = {}
    for key in read:
        if not isinstance(key, int):
            by_run.setdefault(key[0], set()).add(key[1])
    numbers = set().union(*by_run.values())
    if not ranks.is_all:
        return ranks.note(numbers)
    if any(len(own) == MAX_TOGETHER for own in by_run.values()):
        return f" At most {MAX_TOGETHER} ranks of a run are drawn."
    is_cut = any(len(own) == 2 and max(own) > 1 for own in by_run.values())
    return " Of many ranks, those with the lowest and the highest median of each run are drawn." if is_cut else ""
