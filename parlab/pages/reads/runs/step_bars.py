"""The step of a run as a bar with the advice on its parts, and the bar of the run that was tried."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from django.urls import reverse

from parlab.advice.advice import Advice
from parlab.advice.waterfalls.waterfall import USEFUL, Waterfall
from parlab.charts.format import MINUS, SPACE
from parlab.charts.runs import step_bar as chart
from parlab.charts.runs.step_bar import LOOKS, NOMINAL_PX, Chip, StepBar
from parlab.charts.svg import Svg
from parlab.lab.models import AdviceTrial, Run
from parlab.lab.selectors.analysis.advice import best_trial, run_advice, swept_advice, tried_advice
from parlab.lab.selectors.analysis.identities import short_value
from parlab.lab.selectors.analysis.waterfalls import run_waterfalls
from parlab.lab.selectors.runs import step_time
from parlab.pages.rows.waterfalls import TermRow, bar_of, term_table
from parlab.publishing.answers.trials import standings_around, trial_noise
from runners.wire.protocol import RunState

MAX_CHIPS = 3
_SHORT_NOISE = "within noise"


class AdviceChip(NamedTuple):
    """A piece of advice: to be tried, running, or tried with its realised gain."""

    kind: str
    """try, look, running, done, worse, or unsure: changed by less than noise."""
    text: str
    change: str
    """Predicted change of the step time."""
    interval: str
    realised: str = ""
    noise: str = ""
    """`within noise ±22 %`"""
    title: str = ""
    """What a click asks the server to try."""
    href: str = ""
    note: str = ""
    part: str = ""
    x: str = ""
    """Its middle as a share of the width."""
    width: int = 0
    """In pixels."""
    line: str = ""
    """Where its term is."""

    @property
    def half(self) -> int:
        return self.width // 2


class BarTerm(NamedTuple):
    """A term of the bar with its definition, and its own bar for narrow screens."""

    key: str
    name: str
    row: TermRow
    unit: str
    bar: Svg


class RunStep(NamedTuple):
    """What the head of a run shows of its step."""

    total: str
    useful: str
    """`30 useful, 374 lost`."""
    largest: str
    noise: str
    bar: Svg
    terms: list[BarTerm]
    chips: list[AdviceChip]
    tried: Svg | None = None

    @property
    def is_awaited(self) -> bool:
        """Whether the result of a trial is going to appear."""
        return any(chip.kind == "running" for chip in self.chips)


def run_step(run: Run) -> RunStep | None:
    """Return the bar of a run's step; None without a measured waterfall."""
    measured = run_waterfalls(run, with_prediction=False).measured
    if measured is None or not any(part.ns for part in measured.parts if part.key != "unexplained"):
        return None
    advice, trials = _advised(run)
    best = best_trial(trials)
    own = bar_of(measured, _caption(run, best))
    tried = _tried(best)
    noises = _noises(run, trials)
    scale_s = max([own.extent_s, *([tried.extent_s] if tried else [])])
    chips = _chips(run, advice, trials, noises)
    return RunStep(
        own.total,
        _useful(own),
        _largest(measured),
        _noise(run),
        chart.step_bar(own, scale_s, _terms_address(run)),
        _terms(own, measured),
        _placed(chips, own, scale_s),
        None
        if tried is None or best is None
        else _tried_svg(tried, best, scale_s, is_unsure=bool(noises.get(best.changed_run_id))),
    )


def unit_chips(run: Run) -> list[AdviceChip]:
    advice, trials = _advised(run)
    return _chips(run, advice, trials, _noises(run, trials))


def _advised(run: Run) -> tuple[list[Advice], list[AdviceTrial]]:
    """Return the advice for a run that has ended, and what of it was tried, by a person or by the sweep itself."""
    if not run.is_final:
        return [], []
    advice, tried = run_advice(run).advice, tried_advice(run)
    titles = {trial.title for trial in tried}
    return advice, [*swept_advice(run, [row for row in advice if row.title not in titles]), *tried]


def _noises(run: Run, trials: Sequence[AdviceTrial]) -> dict[int, str]:
    """Return by changed run how much of its change noise explains, where that is all of it."""
    ended = [trial for trial in trials if trial.changed_run.state == RunState.FINISHED and trial.realised is not None]
    if not ended:
        return {}
    ranked = standings_around(run)
    return {trial.changed_run_id: noise for trial in ended if (noise := trial_noise(trial, ranked))}


def _terms_address(run: Run) -> str:
    return reverse("run-time", args=[run.experiment.slug, run.number])


def _caption(run: Run, trial: AdviceTrial | None) -> str:
    """Name a run by its number, and by what the tried advice changed."""
    names = [f"#{run.number}"]
    for field in list(trial.changes)[:2] if trial is not None else []:
        section, _, name = field.partition(".")
        names.append(short_value(field, (run.resolved.get(section) or {}).get(name)))
    return " · ".join(names)


def _tried(trial: AdviceTrial | None) -> StepBar | None:
    if trial is None:
        return None
    measured = run_waterfalls(trial.changed_run, with_prediction=False).measured
    return None if measured is None else bar_of(measured, _caption(trial.changed_run, trial))


def _tried_svg(bar: StepBar, trial: AdviceTrial, scale_s: float, *, is_unsure: bool) -> Svg:
    realised = trial.realised or 0.0
    kind = "unsure" if is_unsure else "gain" if realised > 0 else "loss"
    return chart.tried_bar(bar, scale_s, change_text(realised), kind)


def change_text(gain: float | None) -> str:
    """Write a gain as the change of the step time: 0.21 becomes -21 %, with a true minus."""
    if gain is None:
        return ""
    return f"{_signed(gain)}{SPACE}%"


def _signed(gain: float) -> str:
    percent = round(-100 * gain)
    return f"{MINUS}{-percent}" if percent < 0 else f"+{percent}" if percent else "0"


def _interval(low: float, high: float) -> str:
    return f"({_signed(high)} to {_signed(low)})"


def _useful(bar: StepBar) -> str:
    """Return what part of the step is useful; the two numbers add up to the step as written."""
    part = next((part for part in bar.parts if part.key in USEFUL), None)
    if part is None:
        return ""
    decimals = len(part.text.partition(".")[2])
    total, own = (float(text.partition(SPACE)[0].replace(",", "")) for text in (bar.total, part.text))
    rest = f"{total - own:,.{decimals}f}"
    return f"{part.text} useful, {rest} lost" if part.key == "ideal" else f"{part.text} compute, {rest} other"


def _largest(measured: Waterfall) -> str:
    most = next(iter(measured.losses), None)
    if most is None:
        return ""
    title = most.title[:1].lower() + most.title[1:]
    return f"Largest loss: {title}, {round(100 * measured.share(most.key))}{SPACE}%."


def _noise(run: Run) -> str:
    spread = step_time(run.summary)
    if spread is None or spread.p10 is None or spread.p90 is None or not spread.median:
        return ""
    share = round(50 * (spread.p90 - spread.p10) / spread.median)
    return f"±{share}{SPACE}%" if share else ""


def _terms(bar: StepBar, measured: Waterfall) -> list[BarTerm]:
    table = term_table(measured)
    longest_s = max((part.seconds for part in bar.parts), default=0.0)
    return [
        BarTerm(part.key, LOOKS[part.key].title, row, table.unit, chart.term_bar(part, longest_s))
        for part, row in zip(bar.parts, table.rows, strict=True)
        if part.seconds
    ]


def _chips(
    run: Run, advice: Sequence[Advice], trials: Sequence[AdviceTrial], noises: Mapping[int, str]
) -> list[AdviceChip]:
    """Return the advice that was tried, newest first, then what can be tried."""
    newest = {trial.title: trial for trial in trials}
    tried = [_trial_chip(trial, noises.get(trial.changed_run_id, "")) for trial in reversed(newest.values())]
    left = [row for row in advice if row.title not in newest]
    return [*tried, *(_advice_chip(run, row) for row in left)][:MAX_CHIPS]


def _short(title: str) -> str:
    text = title.partition(" instead of ")[0].partition(", or ")[0].partition(": ")[0]
    return text if len(text) <= 34 else f"{text[:33].rstrip()}…"


def _trial_chip(trial: AdviceTrial, noise: str) -> AdviceChip:
    changed, predicted = trial.changed_run, change_text(trial.gain)
    kind, realised = _result(trial)
    kind = "unsure" if noise else kind
    note = f"{trial.title}: predicted {predicted} {_interval(trial.low, trial.high)}, run #{changed.number}"
    address = changed.get_absolute_url()
    return AdviceChip(
        kind, _short(trial.title), predicted, "", realised, noise, href=address, note=note, part=trial.part
    )


def _result(trial: AdviceTrial) -> tuple[str, str]:
    """Return what kind of chip shows a trial, and what became of it."""
    state, realised = RunState(trial.changed_run.state), trial.realised
    if state is RunState.FINISHED and realised is not None:
        return "done" if realised > 0 else "worse", change_text(realised)
    return "worse" if state.is_final else "running", "OOM" if state is RunState.OOM else state.value


def _advice_chip(run: Run, advice: Advice) -> AdviceChip:
    evidence = f"{advice.evidence[:1].upper()}{advice.evidence[1:]}"
    can_try = bool(advice.settings) and run.origin == Run.Origin.MEASURED
    return AdviceChip(
        "try" if can_try else "look",
        _short(advice.title),
        change_text(advice.gain) if advice.saves_time else "",
        _interval(advice.low, advice.high) if advice.saves_time else "",
        title=advice.title if can_try else "",
        href=f"{_terms_address(run)}#advice",
        note=f"{advice.title}. {evidence}. Cost: {advice.cost}. Risk: {advice.risk}.",
        part=advice.part,
    )


def _placed(chips: Sequence[AdviceChip], bar: StepBar, scale_s: float) -> list[AdviceChip]:
    """Order chips by the terms that they would shrink, and place them below these."""
    middles = {place.part.key: place.middle for place in chart.places(bar, scale_s)}
    ordered = sorted(chips, key=lambda chip: middles.get(chip.part, 1.0))
    texts = [_chip_text(chip) for chip in ordered]
    details = [chip.interval for chip in ordered]
    if sum(6.6 * len(text + detail) + 58 for text, detail in zip(texts, details, strict=True)) > NOMINAL_PX:
        ordered = [chip._replace(interval="") for chip in ordered]
    spots = [Chip(middles.get(chip.part, 1.0), text, chip.interval) for chip, text in zip(ordered, texts, strict=True)]
    return [
        chip._replace(
            x=f"{100 * (start + width / 2) / NOMINAL_PX:.2f}%",
            width=round(width),
            line=f"{100 * middles[chip.part]:.2f}%" if chip.part in middles else "",
        )
        for chip, (start, width) in zip(ordered, chart.chip_places(spots), strict=True)
    ]


def _chip_text(chip: AdviceChip) -> str:
    return f"{chip.text} {chip.change}" + (
        f" → realised {chip.realised} {_SHORT_NOISE if chip.noise else ''}" if chip.realised else ""
    )
