"""Rules of chains of attempts, and of the time that a run gets to write a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator

from .fields import RunFields
from .problems import Problem
from .sections import LauncherSection

_GRACE_S = LauncherSection().grace_s
"""A short run need not shorten the grace that it leaves at its default."""


def chain_problems(config: RunFields) -> Iterator[Problem]:
    """Check that the warning and the grace fit into the limit, and that a chain has a checkpoint to go on from."""
    launcher = config.launcher
    is_exact = launcher.chain or launcher.warn_before_s is not None or launcher.grace_s != _GRACE_S
    limit, limit_s = _limit(config)
    if is_exact and launcher.grace_s > limit_s:
        yield _too_long(config, "grace_s", limit, limit_s)
    if launcher.warn_before_s is not None and launcher.warn_before_s >= limit_s:
        yield _too_long(config, "warn_before_s", limit, limit_s)
    if launcher.warn_before_s is not None and launcher.warn_signal == "SIGUSR1" and not config.engine.is_external:
        message = f"SIGUSR1 asks the ranks of engine {config.engine.name} for their stacks; use SIGUSR2"
        yield Problem("launcher.warn_signal", "SIGUSR1", message)
    if launcher.chain:
        yield from _checkpoint_problems(config)
    else:
        yield from _idle_fields(launcher)


def _limit(config: RunFields) -> tuple[str, int]:
    """Return the limit of an attempt that comes first: its own, or that of its job of Slurm."""
    timeout_s, of_job_s = config.launcher.timeout_s, config.slurm.time_limit_s
    return ("timeout_s", timeout_s) if of_job_s is None or timeout_s <= of_job_s else ("slurm.time_limit_s", of_job_s)


def _too_long(config: RunFields, field: str, limit: str, limit_s: int) -> Problem:
    value = getattr(config.launcher, field)
    message = f"{field} {value} is not less than the limit, {limit} {limit_s}; use a smaller one, or raise {limit}"
    if field == "grace_s":
        message = (
            f"{field} {value} is longer than the limit, {limit} {limit_s}; use at most {limit_s}, or raise {limit}"
        )
    return Problem(f"launcher.{field}", value, message)


def _checkpoint_problems(config: RunFields) -> Iterator[Problem]:
    """A program of engine command loads its checkpoints itself."""
    if config.has_checkpoints:
        return
    remedy = "set checkpoint.every_steps" if config.engine.trains else "use an engine that trains, or no chain"
    message = f"a chain goes on from a checkpoint, and engine {config.engine.name} writes none; {remedy}"
    yield Problem("launcher.chain", True, message)


def _idle_fields(launcher: LauncherSection) -> Iterator[Problem]:
    for field in ("chain_until_step", "chain_until_s", "chain_until_exit_code"):
        value = getattr(launcher, field)
        if value is not None:
            message = f"{field} {value} has no effect without a chain; set launcher.chain, or leave it empty"
            yield Problem(f"launcher.{field}", value, message)
