"""Rows of the tables of advice."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from parlab.advice.adjacent_settings import KINDS
from parlab.advice.advice import Advice
from parlab.advice.score import Record
from parlab.charts.format import DASH, exact, quantity, significant
from parlab.lab.models import AdviceTrial, Run
from parlab.lab.selectors.analysis.advice import trial_noise_share
from runners.wire.protocol import RunState


class AdviceRow(NamedTuple):
    """A change as texts."""

    number: int
    title: str
    gain: str
    interval: str
    step_time: str
    part: str
    cost: str
    risk: str
    rule: str
    evidence: str
    record: str
    """How often advice of this kind was right so far."""
    can_try: bool


class TrialRow(NamedTuple):
    """Advice that was tried as texts."""

    trial: AdviceTrial
    predicted: str
    realised: str
    verdict: str


class RecordRow(NamedTuple):
    """The record of a kind as texts."""

    title: str
    tried: int
    unclear: int
    """Within noise."""
    clear: int
    right: str
    error: str


def percent(share: float | None) -> str:
    """Write a share as per cent with three digits and sign."""
    if share is None:
        return DASH
    sign = "\N{MINUS SIGN}" if share < 0 else "+" if share > 0 else ""
    return f"{sign}{significant(abs(100 * share))} %"


def advice_rows(run: Run, advice: Sequence[Advice], records: Iterable[Record]) -> list[AdviceRow]:
    """Return the advice for a run, best first."""
    by_kind = {record.kind: record for record in records}
    seconds = run.unit_time_s or 0.0
    return [
        AdviceRow(
            number,
            row.title,
            *_gain(row, seconds),
            row.part_title,
            row.cost,
            row.risk,
            row.rule,
            row.evidence,
            record_text(by_kind.get(row.kind)),
            bool(row.settings) and run.origin == Run.Origin.MEASURED,
        )
        for number, row in enumerate(advice, 1)
    ]


def _gain(advice: Advice, seconds: float) -> tuple[str, str, str]:
    """Return gain, interval and step time afterwards; dashes where the step stays as it is."""
    if not advice.saves_time:
        return DASH, DASH, DASH
    interval = f"{percent(advice.low)} to {percent(advice.high)}"
    return percent(advice.gain), interval, quantity(advice.predicted_s(seconds), "s")


def record_text(record: Record | None) -> str:
    """Describe the record of a kind: `3 of 4 right`."""
    if record is None or not record.clear:
        return "not tried yet" if record is None else f"{record.tried} tried, all within noise"
    noise = f", {record.unclear} within noise" if record.unclear else ""
    return f"{record.right} of {record.clear} right{noise}"


def trial_rows(trials: Iterable[AdviceTrial]) -> list[TrialRow]:
    """Return advice that was tried: predicted and realised gain side by side."""
    return [TrialRow(trial, percent(trial.gain), percent(trial.realised), _verdict(trial)) for trial in trials]


def _verdict(trial: AdviceTrial) -> str:
    state, realised = RunState(trial.changed_run.state), trial.realised
    if not state.is_final:
        return "running"
    if realised is None or state != RunState.FINISHED:
        return f"the changed run ended as {state.value}"
    noise = trial_noise_share(trial)
    if abs(realised) < noise:
        return f"within noise, ±{significant(100 * noise, 2)} %"
    if trial.low <= realised <= trial.high:
        return "within the interval"
    return "faster than predicted" if realised > trial.high else "slower than predicted"


def record_rows(records: Iterable[Record]) -> list[RecordRow]:
    titles: Mapping[str, str] = {kind: row.title for kind, row in KINDS.items()} | {"all": "All"}
    return [
        RecordRow(
            titles.get(record.kind, record.kind),
            record.tried,
            record.unclear,
            record.clear,
            DASH if record.right_pct is None else f"{exact(record.right)} ({significant(record.right_pct)} %)",
            f"{significant(100 * record.mean_error)} %",
        )
        for record in records
    ]
