"""Numbers of the runs that train now, from their summaries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from django.db.models import QuerySet

from parlab.lab.models import Run
from parlab.serve.metrics.exposition import Family, Sample
from runners.wire.protocol import RunState


class Measure(NamedTuple):
    """A number of a run as a metric."""

    name: str
    help: str
    value: Callable[[Run], Any]


def _at(*path: str) -> Callable[[Run], Any]:
    def value(run: Run) -> Any:
        place: Any = run.summary
        for key in path:
            place = place.get(key) if isinstance(place, dict) else None
        return place

    return value


MEASURES = (
    Measure("step", "Last step of the run.", _at("steps", "last")),
    Measure("step_time_seconds", "Median time of a step.", lambda run: run.step_time_s),
    Measure("tokens_per_second", "Tokens per second.", lambda run: run.tokens_per_s),
    Measure("samples_per_second", "Samples per second.", lambda run: run.samples_per_s),
    Measure("mfu_ratio", "Share of the peak FLOP/s.", lambda run: run.mfu),
    Measure("loss", "Last loss.", _at("loss", "last")),
    Measure("gpu_utilization_percent", "Mean utilization of its GPUs.", _at("gpu_utilization", "mean")),
    Measure("gpu_utilization_percent_min", "Utilization of its least used GPU.", _at("gpu_utilization", "min")),
    Measure("memory_peak_bytes", "Highest memory of a rank.", lambda run: run.memory_max_bytes),
    Measure("gpus", "Number of its GPUs, or of its processes without GPUs.", lambda run: run.gpus),
)


def run_numbers(runs: QuerySet[Run], limit: int) -> Iterator[Family]:
    """Yield the metrics of the newest runs that are running, at most `limit`."""
    running = runs.filter(state=RunState.RUNNING)
    newest = list(running.select_related("experiment__project").order_by("-pk")[:limit])
    labels = {run.pk: _labels(run) for run in newest}
    for measure in MEASURES:
        values = ((run, measure.value(run)) for run in newest)
        samples = [Sample(value, labels[run.pk]) for run, value in values if isinstance(value, int | float)]
        yield Family(f"parlab_run_{measure.name}", "gauge", measure.help, samples)
    left_out = max(0, running.count() - limit)
    text = "Running runs without metrics, because of PARLAB_METRICS_RUNS."
    yield Family("parlab_runs_left_out", "gauge", text, [Sample(left_out)])


def _labels(run: Run) -> dict[str, str]:
    experiment = run.experiment
    return {"project": experiment.project.slug, "experiment": experiment.slug, "run": str(run.number)}
