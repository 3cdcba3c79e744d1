"""What the tab Details shows of a run: attempts, manual launch, environment, snapshots, configuration."""

from __future__ import annotations

from typing import Any

from parlab.fleet.differences import node_differences
from parlab.lab.models import Attempt, Run
from parlab.lab.selectors.environments import environment_rows
from parlab.lab.selectors.runs import by_hand, command_line, config_sections, flat, run_figures, sections_in_use
from parlab.pages.rows.batch_jobs import batch_job, without_job
from parlab.pages.rows.checkpoints import checkpoint_rows
from parlab.pages.rows.findings import finding_rows
from parlab.pages.rows.pods import pod_rows
from parlab.pages.views.experiments.reported import reported_context
from runners.config import engine_of


def details_context(run: Run, attempt: Attempt | None) -> dict[str, Any]:
    """Return the part that changes with the state only."""
    return {
        "attempts": list(run.attempts.with_members()),
        "node_differences": node_differences(attempt.nodes) if attempt else [],
        "checkpoints": checkpoint_rows(attempt) if attempt else [],
        "snapshots": list(run.snapshots.defer("content")),
        "command": command_line(attempt) if attempt else "",
        "by_hand": by_hand(run, attempt) if attempt else "",
        "environment": [*environment_rows(without_job(attempt.environment)), *pod_rows(attempt)] if attempt else [],
        "batch_job": batch_job(attempt.environment) if attempt else None,
    }


def fixed_context(run: Run, findings: Any) -> dict[str, Any]:
    """Return the part that stays as it was when the run was launched or imported."""
    reported = reported_context(run)
    sections, unused = sections_in_use(run, config_sections(run.resolved, run.point, run.config))
    return {
        **reported,
        # The parameters of a reported run are its arguments.
        "arguments": [] if reported else flat(run.launch.get("arguments", {})),
        "derived": sorted((run.launch.get("derived") or {}).items()),
        "figures": run_figures(run),
        "rows": finding_rows(findings),
        "sections": sections,
        "unused": unused,
        "has_recovery": run.attempt_number > 1
        or run.origin != Run.Origin.MEASURED
        or engine_of(run.resolved).is_external,
        "unused_count": sum(len(section.fields) for section in unused),
    }
