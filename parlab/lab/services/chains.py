"""Chains: whether another attempt follows the end of one, and why a chain ends."""

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.db import transaction
from django.utils import timezone

from parlab.lab.models import Attempt, Node, Run
from parlab.lab.services.access.rights import guard_change
from runners.config import Problem, RunConfig
from runners.config.sections import LauncherSection
from runners.wire.protocol import RunState

logger = logging.getLogger(__name__)

LOST = (RunState.LOST, RunState.PREEMPTED)
"""Ends that are not the run's own: without a chain, `launcher.max_attempts` allows another attempt."""
STOPPED = (RunState.CHECKPOINTED, RunState.TIME_LIMIT, RunState.PREEMPTED)
"""Ends of attempts that go on in a chain; at the end of the chain they were its aim."""
_SEEN_WITHIN = timedelta(days=1)
"""A node that was silent for longer is not counted among those of a pool."""
UNKNOWN_PROGRESS_S = 60.0
"""An attempt whose steps are unknown counts as progress if it ran for this long."""


class Decision(NamedTuple):
    """What follows the end of an attempt."""

    goes_on: bool
    state: RunState
    """State of the run if no attempt follows."""
    reason: str = ""


def after_attempt(*, run: Run, number: int, state: RunState, reason: str) -> Decision:
    """Decide what follows the end of a run's current attempt, whose row has its end already."""
    launcher = run.resolved.get("launcher", {})
    if not launcher.get("chain"):
        goes_on = state in LOST and number < int(launcher.get("max_attempts", 1))
        return Decision(goes_on, state, reason)
    if state in (RunState.FINISHED, RunState.CANCELLED):
        return Decision(False, state, reason)
    attempts = list(run.attempts.filter(number__gte=run.chain_from).order_by("number"))
    if aim := _aim(run, launcher, attempts):
        is_reached = state in STOPPED or _has_exit_code(launcher, attempts)
        return Decision(False, RunState.FINISHED if is_reached else state, _joined(aim, reason))
    if run.chain_ended_at is not None:
        return Decision(False, state, _joined(f"the chain was ended by a person after attempt {number}", reason))
    if state == RunState.FAILED and attempts[-1].started_at is None:
        return Decision(False, state, reason)
    return _unless_stalled(launcher, attempts, state, reason)


def unshared_checkpoints(config: RunConfig) -> Problem | None:
    """Return why the attempts of a chain may not find each other's checkpoints: nodes keep them for themselves."""
    if not config.launcher.chain or not config.checkpoint.is_on or config.checkpoint.directory is not None:
        return None
    seen = Node.objects.filter(is_enabled=True, last_heartbeat_at__gte=timezone.now() - _SEEN_WITHIN)
    pool = seen.filter(pool=config.cluster.pool).order_by("name")
    wanted = [name for name in (config.cluster.node_names or "").split(",") if name]
    names = [node.name for node in pool if not node.is_queue and (not wanted or node.name in wanted)]
    # Emulated nodes are namespaces of one machine.
    if len(names) <= (1 if config.network.apply == "emulate" else config.cluster.nodes):
        return None
    message = (
        f"the attempts of the chain may start on {len(names)} nodes of pool {config.cluster.pool}"
        f" ({', '.join(names[:3])}{', ...' * (len(names) > 3)}), and each keeps its checkpoints for itself; set it to a"
        " directory that all of them see, or cluster.node_names to the node that is to keep them"
    )
    return Problem("checkpoint.directory", None, message)


def _joined(text: str, reason: str) -> str:
    return f"{text}: {reason}" if reason else text


def _has_exit_code(launcher: Mapping[str, Any], attempts: Sequence[Attempt]) -> bool:
    code = launcher.get("chain_until_exit_code")
    return code is not None and attempts[-1].exit_code == code


def _aim(run: Run, launcher: Mapping[str, Any], attempts: Sequence[Attempt]) -> str:
    """Return which aim of the chain is reached; empty if none is."""
    if _has_exit_code(launcher, attempts):
        return f"the chain has ended with exit code {attempts[-1].exit_code} (launcher.chain_until_exit_code)"
    last_step = max((attempt.last_step or 0 for attempt in attempts), default=0)
    until_step = launcher.get("chain_until_step")
    if until_step is not None and last_step >= until_step:
        return f"the chain has reached step {last_step} (launcher.chain_until_step {until_step})"
    left_s = chain_left_s(run, attempts)
    if left_s is not None and left_s < 1:
        return f"the chain has run for launcher.chain_until_s {launcher['chain_until_s']}"
    return ""


def chain_left_s(run: Run, attempts: Sequence[Attempt], now: datetime | None = None) -> float | None:
    """Return the seconds until `launcher.chain_until_s`; None without one, or before the first start."""
    limit_s = run.resolved.get("launcher", {}).get("chain_until_s")
    starts = [each.started_at for each in attempts if each.started_at is not None and each.number >= run.chain_from]
    if limit_s is None or not starts:
        return None
    return (min(starts) + timedelta(seconds=limit_s) - (now or timezone.now())).total_seconds()


def _unless_stalled(launcher: Mapping[str, Any], attempts: Sequence[Attempt], state: RunState, reason: str) -> Decision:
    stalled = stalled_attempts(attempts)
    field = "max_attempts" if state == RunState.LOST else "chain_max_stalled"
    most = int(launcher.get(field) or getattr(LauncherSection(), field))
    if stalled < most:
        return Decision(True, state, reason)
    text = f"no new step in {stalled} attempts in a row (launcher.{field} {most}), so the chain has ended"
    if stalled == 1:
        text = f"no step in an attempt (launcher.{field} {most}), so the chain has ended"
    ended = state if state in (RunState.LOST, RunState.OOM) else RunState.FAILED
    return Decision(False, ended, _joined(text, reason))


def stalled_attempts(attempts: Sequence[Attempt]) -> int:
    """Return how many attempts at the end of a chain made no step that earlier ones had not made."""
    best, stalled = 0, 0
    for attempt in attempts:
        has_progressed = (attempt.last_step or 0) > best if attempt.last_step is not None else _ran_long(attempt)
        stalled = 0 if has_progressed else stalled + 1
        best = max(best, attempt.last_step or 0)
    return stalled


def _ran_long(attempt: Attempt) -> bool:
    if attempt.started_at is None or attempt.ended_at is None:
        return False
    return (attempt.ended_at - attempt.started_at).total_seconds() >= UNKNOWN_PROGRESS_S


@transaction.atomic
def run_chain_end(*, run: Run) -> Run:
    """End the chain of a run after its current attempt; raises ValueError if it has none, or has ended."""
    guard_change(run)
    current = Run.everything.select_for_update(no_key=True).get(pk=run.pk)
    if not current.is_chain:
        raise ValueError(f"run #{current.number} is no chain; launcher.chain is off in its configuration")
    if current.is_final:
        raise ValueError(f"run #{current.number} has already ended: {current.state}")
    if current.chain_ended_at is None:
        current.chain_ended_at = timezone.now()
        current.save(update_fields=["chain_ended_at"])
        logger.info("the chain of run %s ends after attempt %s", current.pk, current.attempt_number)
    return current
