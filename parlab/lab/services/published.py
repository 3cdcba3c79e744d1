import math
from collections.abc import Mapping
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone

from parlab.lab.models import Config, Run
from runners.config import complete, digest, field_names, with_values
from runners.wire.protocol import RunState

from . import storable
from .attempts import headline, results_snapshot
from .configs import lock_experiment
from .runs import next_number, point_label


@transaction.atomic
def published_run_add(
    *,
    config: Config,
    point: Mapping[str, Any],
    user: User,
    summary: Mapping[str, Any],
    state: str = RunState.FINISHED,
    reason: str = "",
) -> Run:
    """Add published results as a finished run; its point may have axes that are not fields of a configuration.

    Raises ValueError if the point already has a run, or if the state is not final.
    """
    if not RunState(state).is_final:
        raise ValueError(f"state {state} of a published run is not final; use finished, oom or failed")
    lock_experiment(config.experiment)
    point_digest = digest(point)
    existing = config.runs.filter(point_digest=point_digest).first()
    if existing is not None:
        raise ValueError(f"point {point_label(point)!r} already has run #{existing.number}")
    figures = storable.json(summary)
    run = Run.objects.create(
        experiment=config.experiment,
        config=config,
        number=next_number(config),
        label=point_label(point) or f"v{config.version}",
        origin=Run.Origin.PUBLISHED,
        point=point,
        point_digest=point_digest,
        resolved=_resolved(config, point),
        state=state,
        reason=reason,
        summary=figures,
        created_by=user,
        ended_at=timezone.now(),
        **headline(figures),
    )
    results_snapshot(run, 1, {"state": state, "reason": reason, "summary": figures}).save(force_insert=True)
    return run


def _resolved(config: Config, point: Mapping[str, Any]) -> dict[str, Any]:
    """Apply the values of the point that are configuration fields; the layout need not be supported by an engine."""
    fields = set(field_names())
    resolved = complete(with_values(config.data, {field: point[field] for field in point if field in fields}))
    parallel, cluster = resolved["parallel"], resolved["cluster"]
    if cluster["gpus_per_node"] is None:
        sizes = ("tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size", "data_parallel_size")
        ranks = math.prod(parallel[size] for size in sizes)
        cluster["gpus_per_node"] = max(1, ranks // cluster["nodes"])
    return resolved
