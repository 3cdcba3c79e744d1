"""What a person took of two contradicting numbers before an import: the finding is judged, and a headline follows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from django.contrib.auth.models import User
from django.db import transaction

from parlab.formats.schema import Finding as Found
from parlab.lab.models import Finding, Run, Source
from parlab.lab.services.attempts import headline
from parlab.lab.services.findings import finding_acknowledge
from runners.config import digest

SEEN = "seen"
"""The choice of a finding that has no second number: a person has seen it."""
TAKEN = "taken"
"""The part of a summary with the headlines that a person chose: a rebuild keeps them."""
_EXPECTED = "expected_"
_HEADLINES = ("step_time_s", "samples_per_s", "tokens_per_s", "tflops_per_gpu", "mfu")


class Choice(NamedTuple):
    """One number of a finding that can be taken."""

    name: str
    """Its name in the finding: `samples_per_s`, or `expected_samples_per_s` for what arithmetic gives."""
    value: float


def key_of(finding: Found | Finding) -> str:
    """Return what identifies a finding before and after it is stored."""
    where = finding.where if isinstance(finding, Finding) else finding.where.model_dump(exclude_none=True)
    return f"{finding.rule}:{digest(where)[:12]}"


def choices_of(numbers: Mapping[str, float]) -> list[Choice]:
    """Return the two numbers that contradict each other, the stated one first; empty if there is no such pair."""
    name = next((name for name in numbers if f"{_EXPECTED}{name}" in numbers), "")
    return [Choice(part, numbers[part]) for part in (name, f"{_EXPECTED}{name}")] if name else []


@transaction.atomic
def findings_choose(*, sources: Sequence[int], choices: Mapping[str, str], user: User) -> int:
    """Judge the findings of new sources as a person chose, {key of a finding: name of a number, or SEEN}."""
    judged = 0
    findings = Finding.objects.open().select_related("source", "experiment").filter(source__in=sources)
    for finding in findings if choices else ():
        chosen = choices.get(key_of(finding), "")
        offered = choices_of(finding.numbers)
        taken = next((choice for choice in offered if choice.name == chosen), None)
        if taken is None and chosen != SEEN:
            continue
        finding_acknowledge(finding=finding, user=user, reason=_reason(taken, offered))
        judged += 1
        name = taken.name.removeprefix(_EXPECTED) if taken else ""
        if taken is not None and name in _HEADLINES and finding.source is not None:
            _take(_run_of(finding.source, finding), name, taken)
    return judged


def _reason(taken: Choice | None, offered: Sequence[Choice]) -> str:
    if taken is None:
        return "Seen before the import."
    other = next(choice for choice in offered if choice.name != taken.name)
    is_computed = taken.name.startswith(_EXPECTED)
    return f"Taken before the import: {taken.value:.6g}{' (computed)' if is_computed else ''}, not {other.value:.6g}."


def _run_of(source: Source, finding: Finding) -> Run | None:
    runs = list(source.runs.order_by("number"))
    line = finding.line
    if len(runs) == 1 or line is None:
        return runs[0] if len(runs) == 1 else None
    return next((run for run in runs if (run.first_line or 0) <= line <= (run.last_line or 0)), None)


def _take(run: Run | None, name: str, choice: Choice) -> None:
    if run is None:
        return
    kind = "derived" if choice.name.startswith(_EXPECTED) else "printed"
    taken = {**(run.summary.get(TAKEN) or {}), name: {"value": choice.value, "kind": kind}}
    summary = with_taken(run.summary, taken)
    values = headline(summary)
    Run.objects.filter(pk=run.pk).update(summary=summary, **values)
    run.attempts.filter(number=run.attempt_number).update(summary=summary)


def with_taken(summary: Mapping[str, Any], taken: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return a summary with the headlines that a person chose."""
    if not taken:
        return dict(summary)
    changed: dict[str, Any] = {**summary, TAKEN: dict(taken)}
    changed["kinds"] = {**(summary.get("kinds") or {})}
    for name, choice in taken.items():
        value = choice["value"]
        changed[name] = {**(summary.get(name) or {}), "median": value} if name == "step_time_s" else value
        changed["kinds"].pop(name, None)
        if choice["kind"] != "printed":
            changed["kinds"][name] = choice["kind"]
    return changed
