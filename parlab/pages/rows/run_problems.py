"""What went wrong in a run: what, where, and what to do next."""

from __future__ import annotations

import re
from typing import NamedTuple

from django.urls import reverse

from parlab.lab.models import Attempt, Run
from parlab.lab.selectors.analysis.pipelines import pipeline_of
from runners.wire.protocol import RunState

_RANK = re.compile(r"\brank (\d{1,6})\b")
_TITLES = {RunState.FAILED: "Failed", RunState.OOM: "Out of memory", RunState.LOST: "Lost"}
_ENDED = re.compile(r"^out of memory(?: on rank \d+)?[:,]?\s*", re.IGNORECASE)


class Action(NamedTuple):
    """A link or, with `post`, a button."""

    title: str
    href: str
    permission: str = ""


class RunProblem(NamedTuple):
    """The line that takes the place of the step."""

    kind: str
    """bad or warn: a class of face.css."""
    what: str
    reason: str
    where: list[str]
    actions: list[Action]


def run_problem(run: Run, attempt: Attempt | None) -> RunProblem | None:
    """Return what went wrong in a run; None if nothing did."""
    state = RunState(run.state)
    if state in _TITLES:
        kind = "warn" if state is RunState.OOM else "bad"
        return RunProblem(kind, _TITLES[state], _reason(run), _where(run, attempt), _actions(run, attempt))
    loss = run.summary.get("loss") or {}
    if loss.get("not_finite") and loss.get("last") is None:
        count = loss["not_finite"]
        reason = f"the loss is not a finite number in {count} step{'' if count == 1 else 's'}"
        log = [Action("Open the log", f"{_log(run)}?find=nan")] if attempt is not None else []
        return RunProblem("bad", "Loss is NaN", reason, _where(run, attempt), [*log, _change(run)])
    return None


def _reason(run: Run) -> str:
    if run.state == RunState.OOM:
        return _ENDED.sub("", run.reason)
    return run.reason


def _where(run: Run, attempt: Attempt | None) -> list[str]:
    rank = _RANK.search(run.reason)
    step = attempt.last_step if attempt is not None else None
    places = [f"rank {rank[1]}"] if rank else []
    if attempt is not None:
        places.append("before the first step" if not step else f"after step {step}")
    return places


def _log(run: Run) -> str:
    return reverse("run-log", args=[run.experiment.slug, run.number])


def _change(run: Run) -> Action:
    size = (run.resolved.get("train") or {}).get("micro_batch_size")
    is_oom = run.state == RunState.OOM and isinstance(size, int) and size > 1
    title = f"Lower the micro batch of {size:,}" if is_oom else "Change the configuration"
    address = f"{reverse('sweep-edit', args=[run.experiment.slug])}?version={run.config.version}"
    return Action(title, address, "lab.add_config")


def _simulate(run: Run) -> Action:
    pipelined = pipeline_of(run)
    can_simulate = pipelined is not None and (pipelined.step_time_s is not None or pipelined.is_emulated)
    own = reverse("run-simulate", args=[run.experiment.slug, run.number])
    return Action("Simulate on this network", own if can_simulate else reverse("simulate"))


def _actions(run: Run, attempt: Attempt | None) -> list[Action]:
    """Return the next steps, the most likely first; a run of a file has no configuration to change."""
    found = [Action("Open the log", f"{_log(run)}?errors=1")] if attempt is not None else []
    if run.origin != Run.Origin.MEASURED:
        return found
    if "network." in run.reason:
        return [_simulate(run), *found]  # a simulation needs no link shaping
    return [_change(run), *found] if run.state == RunState.OOM else [*found, _change(run)]
