"""Answers to questions that are not about the fastest run: scaling, size, bandwidth, memory, time, nodes, networks."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from django.db.models import F

from parlab.advice.waterfalls.terms import TERMS
from parlab.charts.axes import is_network, layout_note
from parlab.charts.format import MINUS, SPACE, quantity
from parlab.charts.points import RunPoint
from parlab.charts.sweeps import bandwidth, capacity, efficiency
from parlab.charts.sweeps.capacity import Search
from parlab.lab.models import AdviceTrial, Attempt, Run
from parlab.lab.selectors.analysis.advice import best_trial
from parlab.lab.selectors.analysis.stragglers import slowest_rank, slowest_stage
from parlab.lab.selectors.analysis.waterfalls import has_waterfall, run_waterfalls
from parlab.publishing.figures import engine_measurements
from runners.config import engine_of
from runners.config.engines import UNKNOWN
from runners.wire.protocol import RunState

from .answer import Action, Answer, Case, Short
from .standings import Standing
from .trials import trial_noise
from .words import MEASURABLE, capital, named, phrase, share, times

_SCALES = re.compile(r"\bscal(e|es|ing)\b")
_FITS = re.compile(r"\bfits?\b|\bmemory\b|\bsuit")
_TIME = re.compile(r"\bwhere does the time\b|\btime\b.* go\b|\bwhich change\b")
_SLOWEST = re.compile(r"\bslowest\b|\bstraggler|\bslow (rank|node)\b")
_NETWORK = re.compile(r"\bnetwork|\blatency|\bdelay")
_VARIES = re.compile(r"\bvar(y|ies)\b|\bday to day\b")
_LARGEST = re.compile(r"\blargest\b|\bbiggest\b")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s?([KMBT])\b")
_POWERS = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
POOR = 0.7
"""Efficiency below which a training is said not to scale."""
_COUNTS = {2: "Two", 3: "Three", 4: "Four", 5: "Five", 6: "Six"}


def largest(case: Case) -> Answer | None:
    """Answer from the trials of a capacity search."""
    searches = list(_searches(case.runs))
    if not searches:
        return None
    run, search = searches[0]
    text = " ".join(capacity.answer(each) for _, each in searches)
    count = search.counted(search.best.value) if search.best else ""
    does = "fits" if count.startswith("1 ") else "fit"
    short = Short(capital(count), f" {does}" if search.is_done else " so far") if count else Short("Nothing", " fits")
    size = search.best.parameters if search.best else None
    key = quantity(size, "parameters") if size else ""
    return Answer(text, short, key=key, tone="good" if count else "warn", best=run)


def _searches(runs: Sequence[Run]) -> Iterator[tuple[Run, Search]]:
    of_capacity = [run for run in runs if engine_of(run.resolved).searches_capacity]
    attempts = Attempt.objects.filter(run__in=[run.pk for run in of_capacity], number=F("run__attempt_number"))
    current = {attempt.run_id: attempt for attempt in attempts.with_members()} if of_capacity else {}
    for run in of_capacity:
        search = engine_measurements.run_search(run, current[run.pk]) if run.pk in current else None
        if search is not None and search.trials:
            yield run, search


def largest_stated(case: Case) -> Answer | None:
    """Answer from the sizes of models that a document says to fit."""
    if not _LARGEST.search(case.question):
        return None
    sizes = [(size, text, row) for row in case.standings.rows for text, size in _sizes(row)]
    if not sizes:
        return None
    _, text, row = max(sizes, key=lambda item: item[0])
    on = f" on {int(row.run.gpus):,} GPUs" if row.run.gpus else ""
    least = min(sizes, key=lambda item: item[2].run.gpus or 0)
    rest = f"{least[1]} fits on {int(least[2].run.gpus):,}." if least[2].run.gpus and least[2] is not row else ""
    return Answer(f"{text} fits{on}.", Short(text, f" fits{on}"), (rest,) if rest else (), key=text).about(row)


def _sizes(row: Standing) -> Iterator[tuple[str, float]]:
    for value in row.run.point.values():
        if isinstance(value, str) and (found := _SIZE.fullmatch(value)):
            yield value, float(found[1]) * _POWERS[found[2]]


def bandwidths(case: Case) -> Answer | None:
    """Answer from measured or imported bandwidths."""
    engines = {engine_of(run.resolved) for run in case.runs}
    if not all(engine.measures_bandwidth or engine == UNKNOWN for engine in engines):
        return None
    messages = engine_measurements.experiment_messages([case.experiment], case.runs)
    if not messages:
        return None
    rates = [message for message in messages if message.busbw is not None]
    best = max((each.busbw or 0.0 for each in rates if each.operation == "all-reduce"), default=0.0)
    best = best or max((each.busbw or 0.0 for each in rates), default=0.0)
    key = bandwidth.gigabytes(best).partition(" (")[0] if best else ""
    return Answer(capital(bandwidth.caption(messages)), Short(key, " bus bandwidth") if key else Short())


def scaling(case: Case) -> Answer | None:
    """Answer how throughput grows with the number of devices: efficiency against the smallest run of the figure."""
    if not _SCALES.search(case.question) or case.standings.unit in ("s", "TFLOP/s"):
        return None
    points = case.points()
    line = efficiency.longest_line(points)
    best = _fastest_by_count(case, line)
    if len(best) < 2:
        return None
    first, *more = sorted(best)
    shares = {count: best[count].share for count in more}
    poor = next((count for count in more if shares[count] < POOR), None)
    last, device = more[-1], case.standings.devices
    base = f"against {first:,} {case.standings.device if first == 1 else device}"
    ends = f"{case.standings.shown(best[first].row)} at {first:,}, {case.standings.shown(best[last].row)} at {last:,}."
    rest = tuple(filter(None, [ends, layout_note(points).strip() if line else ""]))
    if poor is None:
        text = f"{share(shares[last])} efficiency at {last:,} {device}"
        verdict, row = f"Scales to {last:,} {device}: {share(shares[last])} efficiency {base}.", best[last].row
        return Answer(verdict, Short("", text), rest, key=f"{share(shares[last])} at {last:,}").about(row)
    text = f"{share(shares[poor])} efficiency at {poor:,} {device}"
    reached = [count for count in more if count < poor]
    verdict = f"Scales to {reached[-1]:,} {device}, then {text}" if reached else f"Does not scale: {text}"
    verdict += f", {share(shares[last])} at {last:,}, {base}." if poor != last else f" {base}."
    short = Short("", text) if reached else Short("Does not scale", f" to {poor:,} {device}")
    key = f"{share(shares[poor])} at {poor:,}"
    return Answer(verdict, short, rest, key=key, tone="warn").about(best[first].row)


class _Scaled(NamedTuple):
    """A point of a number of devices, with its throughput per device as a share of that on the fewest."""

    row: Standing
    share: float


def _fastest_by_count(case: Case, line: Sequence[RunPoint]) -> dict[int, _Scaled]:
    """Return the fastest point of each number of devices on a line of the figure; without a line, of all points."""
    rows = {run.number: row for row in case.standings.rows for run in row.runs}
    scaled = [
        (point.gpus or 1, _Scaled(rows[point.number], efficiency.of_line(line, point)))
        for point in line
        if point.number in rows
    ] or _by_speed(case.standings.rows)
    best: dict[int, _Scaled] = {}
    for count, step in sorted(scaled, key=lambda item: -item[1].share):
        best.setdefault(count, step)
    return best


def _by_speed(rows: Sequence[Standing]) -> list[tuple[int, _Scaled]]:
    counted = [(int(row.run.gpus), row) for row in rows if row.run.gpus]
    fewest = min((count for count, _ in counted), default=0)
    base = max((row.speed for count, row in counted if count == fewest), default=1.0)
    return [(count, _Scaled(row, row.speed / base)) for count, row in counted]


def memory_fits(case: Case) -> Answer | None:
    """Answer whether a setting fits into the memory: runs that were out of memory, beside the fastest that fits."""
    out = [run for run in case.runs if run.state == RunState.OOM]
    if not out or not _FITS.search(case.question):
        return None
    identity = case.identities[out[0].pk]
    limit_mib = out[0].resolved.get("launcher", {}).get("memory_limit_mib")
    within = f"{limit_mib / 1024:g}{SPACE}GiB" if isinstance(limit_mib, int) else "the memory"
    name = capital(phrase(identity.values) or identity.name)
    answer = Answer(f"{name} does not fit {within}.", Short(name, f" does not fit {within}"), key="OOM", tone="warn")
    fit = next(iter(case.standings.rows), None)
    if fit is None:
        return answer
    text = f"{capital(phrase(fit.values) or fit.identity.name)} fits and reaches {case.standings.shown(fit)}."
    return answer._replace(rest=(text,)).about(fit)


def where_time_goes(case: Case) -> Answer | None:
    """Answer where the time of a step goes, and what a change that was tried has saved."""
    if not _TIME.search(case.question):
        return None
    tried = AdviceTrial.objects.filter(run__in=[run.pk for run in case.runs])
    trial = best_trial(tried.select_related("run", "changed_run"))
    candidates = [trial.run] if trial else [run for run in case.runs if run.state == RunState.FINISHED]
    run = next((run for run in candidates if has_waterfall(run)), None)
    measured = run_waterfalls(run, with_prediction=False).measured if run is not None else None
    if run is None or measured is None:
        return None
    worst = next((part for part in measured.losses if part.key != "unexplained"), None)
    part, title = (share(measured.share(worst.key)), TERMS[worst.key].title.lower()) if worst else ("", "")
    if trial is not None:
        return _tried(case, trial, f"Before, the largest loss was {title}, {part}." if worst else "")
    if worst is None:
        return None
    total = quantity(measured.total_s, "s")
    action = Action("See what to change", "run", run)
    text = f"The largest loss is {title}, {part} of {total} a step."
    answer = Answer(text, Short(part, f" of a step is {title}"), key=total, tone="plain", action=action)
    return answer._replace(best=run, look=case.identities[run.pk].look)


def _tried(case: Case, trial: AdviceTrial, before_text: str) -> Answer:
    saved, changed = trial.realised or 0.0, trial.changed_run
    rows = {row.run.pk: row for row in case.standings.rows}
    after, noise = rows.get(changed.pk), trial_noise(trial, case.standings)
    name = capital(phrase(trial.changes) or trial.title)
    size = share(abs(saved), 1 if noise else 2)
    word = f"saves {size}" if saved > 0 else f"costs {size}"
    is_nothing = bool(noise) and abs(saved) < MEASURABLE
    repeat = Action(f"Repeat 3{SPACE}× to be sure", "repeat", changed)
    answer = Answer(
        verdict=f"{name} makes no measurable difference." if is_nothing else f"{name} {word} of the step.",
        short=Short(name, ": no measurable difference" if is_nothing else f" {word}"),
        rest=(before_text,) if before_text else (),
        noise=noise,
        is_lead_unsure=bool(noise),
        action=repeat if noise else Action("Look at the run", "run", changed),
        key=noise or f"{MINUS if saved > 0 else '+'}{share(abs(saved))}",
        tone="plain" if noise else "good",
    )
    return answer.about(after) if after else answer


def slowest_node(case: Case) -> Answer | None:
    if not _SLOWEST.search(case.question):
        return None
    for run in reversed(case.runs):
        slow = (slowest_rank(run) or slowest_stage(run)) if run.state == RunState.FINISHED else None
        if slow is not None:
            name, more = capital(slow.name), f"{100 * slow.excess:.0f}{SPACE}%"
            text = f"{name} is the slowest: it {slow.work} {more} longer than the others."
            action = Action("See its ranks", "run", run)
            answer = Answer(text, Short(name, f" is slowest: +{more}"), key=f"+{more}", tone="warn", action=action)
            return answer._replace(best=run, look=case.identities[run.pk].look)
    return None


def slow_networks(case: Case) -> Answer | None:
    """Answer what the slowest network costs each series, against the fastest one."""
    rows = case.standings.rows
    field = next((field for row in rows for field in row.values if is_network(field)), "")
    if not field or not _NETWORK.search(case.question):
        return None
    groups: dict[str, list[Standing]] = defaultdict(list)
    for row in rows:
        groups[row.identity.group].append(row)
    costs = {name: max(_costs(case, members, field), default=(0.0, 0)) for name, members in groups.items()}
    ordered = sorted(costs.items(), key=lambda item: -item[1][0])
    if not ordered or not ordered[0][1][0]:
        return None
    (worst, (cost, place)), *_ = ordered
    network = named(field, groups[worst][place].values[field])
    parts = [f"{named('parallel.schedule', name)} {share(each)}" for name, (each, _) in ordered[:3] if each]
    short = Short("", f"Slowest network costs {named('parallel.schedule', worst)} {share(cost)}")
    answer = Answer(f"{capital(network)} costs {' and '.join(parts)}.", short, key=share(cost), tone="warn")
    return answer.about(groups[worst][place])


def _costs(case: Case, members: Sequence[Standing], field: str) -> Iterator[tuple[float, int]]:
    """Yield what a value of the field costs against another one, all else equal, and the place of the slower point."""
    for place, slow in enumerate(members):
        for fast in members:
            if _differs_only(fast, slow, field):
                yield case.standings.ahead(fast, slow) - 1, place


def _differs_only(first: Standing, second: Standing, field: str) -> bool:
    """Whether two points differ in this field alone."""
    fields = {*first.values, *second.values}
    return {each for each in fields if first.values.get(each) != second.values.get(each)} == {field}


def variation(case: Case) -> Answer | None:
    """Answer how much equal settings differ from day to day."""
    if not _VARIES.search(case.question):
        return None
    rows = case.standings.rows
    field = next((each for row in rows for each in row.values if each.rpartition(".")[2] in ("day", "date")), "")
    pairs = [(case.standings.ahead(a, b), a, b) for a in rows for b in rows if field and _differs_only(a, b, field)]
    if not pairs:
        return None
    ratio, fast, slow = max(pairs, key=lambda pair: pair[0])
    count = len({repr(row.values.get(field)) for row in rows})
    days = f"{_COUNTS.get(count, str(count))} days"
    ends = [f"{case.standings.shown(row)} on {row.values[field]}" for row in (fast, slow)]
    verdict = f"Equal runs differ by {times(ratio)}: {' and '.join(ends)}."
    return Answer(verdict, Short(days, f" differ by {times(ratio)}"), key=case.standings.shown(rows[0])).about(rows[0])
