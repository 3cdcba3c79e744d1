"""What went wrong in a run: what, where, and what to do next."""

from __future__ import annotations

import re
from typing import NamedTuple

from django.urls import reverse

from parlab.charts.format import significant
from parlab.lab.models import Attempt, Run
from parlab.lab.selectors.analysis.pipelines import pipeline_of
from runners.wire.protocol import RunState

_RANK = re.compile(r"\brank (\d{1,6})\b")
_TITLES = {
    RunState.FAILED: "Failed",
    RunState.OOM: "Out of memory",
    RunState.LOST: "Lost",
    RunState.TIME_LIMIT: "Time limit reached",
    RunState.PREEMPTED: "Preempted",
}
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
    replaces_step: bool = True


def run_problem(run: Run, attempt: Attempt | None) -> RunProblem | None:
    """Return what went wrong in a run; None if nothing did."""
    state = RunState(run.state)
    if state in _TITLES:
        kind = "warn" if state is RunState.OOM else "bad"
        return RunProblem(kind, _TITLES[state], _reason(run), _where(run, attempt), _actions(run, attempt))
    return _loss_problem(run, attempt) if run.loss_mark else None


def _loss_problem(run: Run, attempt: Attempt | None) -> RunProblem:
    """Say from which step on the loss is not finite, or rises."""
    loss = run.summary.get("loss") or {}
    log = [Action("Open the log", f"{_log(run)}?find=loss")] if attempt is not None else []
    actions = [*log, *([_change(run)] if run.origin == Run.Origin.MEASURED else [])]
    if run.loss_mark == Run.LossMark.NAN:
        count, first = int(loss.get("not_finite") or 1), loss.get("first_not_finite")
        where = [] if first is None else [f"from step {first}"]
        reason = f"{count} value{'' if count == 1 else 's'} of the loss {'is' if count == 1 else 'are'} not finite."
        return RunProblem("bad", "Loss is NaN", reason, where, actions, replaces_step=loss.get("last") is None)
    rise = loss.get("diverged") or {}
    where = [f"since step {rise['step']}"] if rise.get("step") is not None else []
    reason = f"{significant(rise.get('level'))} → {significant(rise.get('reached'))}" if rise.get("reached") else ""
    return RunProblem("bad", "Loss diverged", reason, where, actions, replaces_step=False)


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
