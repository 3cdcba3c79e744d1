"""Measurements specific to an engine: bandwidths, capacity searches, device maps."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from django.db.models import F

from parlab.charts.fields import value_label
from parlab.charts.sweeps import bandwidth, capacity, device_map
from parlab.charts.sweeps.bandwidth import Message
from parlab.charts.sweeps.capacity import Search, Trial
from parlab.fleet.capacity import gpu_count
from parlab.lab.models import Attempt, Experiment, Run, Source
from parlab.lab.selectors.device_grids import device_grid
from parlab.publishing.figures.bandwidths import FORMATS, messages_of
from parlab.series import store
from runners.config import engine_of
from runners.config.devices import DEVICES
from runners.wire.protocol import RunState

OPERATIONS = {
    "all-reduce": ("all_reduce_perf", "sum"),
    "all-gather": ("all_gather_perf", "none"),
    "reduce-scatter": ("reduce_scatter_perf", "sum"),
    "point-to-point": ("sendrecv_perf", "none"),
}
"""Operation of engine allreduce -> its nccl-tests name and redop column."""
TYPES = {"fp32": ("float", 4), "bf16": ("bfloat16", 2), "fp16": ("half", 2)}
"""Precision -> its nccl-tests name and its size in bytes."""
_MEASURES = ("time_s", "first_time_s", "algbw", "busbw", "wrong")


class OperationTable(NamedTuple):
    """A table in the layout of nccl-tests."""

    title: str
    operation: str
    ranks: int | None
    rows: list[Message]
    has_first: bool


def has_steps(run: Run) -> bool:
    """Return whether a run trains in steps; capacity searches and bandwidth measurements do not."""
    return engine_of(run.resolved).has_steps


class StepFps(NamedTuple):
    """avg_step_fps as engine sharding defines it."""

    value: float
    """Sequences per second: mean over steps of global batch size / step time of the slowest device."""
    steps: int
    batch: int


def run_step_fps(run: Run, attempt: Attempt) -> StepFps | None:
    """Return the mean sequences per second of the steps after warm-up, as engine sharding measures them."""
    if not engine_of(run.resolved).has_device_map:
        return None
    train = run.resolved["train"]
    series = store.read(attempt.pk, "step_fps", rank=0, first_step=int(train["warmup_steps"]) + 1)
    if not len(series):
        return None
    return StepFps(float(series.values.mean()), len(series), int(train["global_batch_size"]))


def run_messages(runs: Sequence[Run], attempts: Iterable[Attempt]) -> list[Message]:
    """Read the bandwidths that engine allreduce measured in these attempts, in one query."""
    by_attempt = {attempt.pk: attempt.run_id for attempt in attempts}
    by_pk = {run.pk: run for run in runs if engine_of(run.resolved).measures_bandwidth}
    attempt_ids = [attempt for attempt, run in by_attempt.items() if run in by_pk]
    if not attempt_ids:
        return []
    names = [f"{measure}/{operation}" for operation in OPERATIONS for measure in _MEASURES]
    measured: dict[tuple[int, str], dict[int, dict[str, float]]] = {}
    for (attempt, metric, _), columns in store.read_many(attempt_ids, names, rank=0).items():
        measure, _, operation = metric.partition("/")
        sizes = measured.setdefault((attempt, operation), {})
        for size, value in zip(columns.steps.tolist(), columns.values.tolist(), strict=True):
            sizes.setdefault(size, {})[measure] = value
    variants = _variants(runs)
    return [
        _message(by_pk[by_attempt[attempt]], operation, size, values)._replace(variant=variants[by_attempt[attempt]])
        for (attempt, operation), sizes in measured.items()
        for size, values in sorted(sizes.items())
        if "algbw" in values
    ]


_OF_LINES = ("parallel.data_parallel_size", "cluster.nodes", "cluster.gpus_per_node")
"""Axes that the number of ranks of a line shows."""


def _variants(runs: Sequence[Run]) -> dict[int, str]:
    """Return what tells the bandwidths of runs apart besides operation and ranks: run id -> text."""
    axes = dict.fromkeys(axis for run in runs for axis in run.point if axis not in _OF_LINES)
    varied = [axis for axis in axes if len({repr(run.point.get(axis)) for run in runs}) > 1]
    several = len({run.config_id for run in runs}) > 1
    return {
        run.pk: ", ".join(
            [f"v{run.config.version}"] * several
            + [value_label(axis, run.point[axis]) for axis in varied if axis in run.point]
        )
        for run in runs
    }


def experiment_messages(experiments: Collection[Experiment], runs: Sequence[Run]) -> list[Message]:
    """Read the bandwidths measured by runs and documents in files of experiments."""
    attempts = Attempt.objects.filter(run__in=[run.pk for run in runs], number=F("run__attempt_number"))
    documents = Source.objects.filter(experiment__in=experiments, format__in=FORMATS).values_list("document", "name")
    imported = [message for document, name in documents for message in messages_of(document, name)]
    return [*run_messages(runs, attempts.only("pk", "run_id")), *imported]


def own_messages(run: Run, attempt: Attempt) -> list[Message]:
    """Read the bandwidths that a run measured, or that the file states of which it is the only run."""
    source = run.source if run.source_id else None
    if source is None or source.format not in FORMATS or source.runs.count() > 1:
        return run_messages([run], [attempt])
    return messages_of(source.document, "")


def _message(run: Run, operation: str, size: int, values: Mapping[str, float]) -> Message:
    kind, width = TYPES.get(str(run.resolved["train"]["precision"]), ("", 0))
    return Message(
        run=run.number,
        operation=operation,
        ranks=int(run.resolved["parallel"]["data_parallel_size"]),
        size=size,
        algbw=values["algbw"],
        busbw=values.get("busbw"),
        time_s=values.get("time_s"),
        first_time_s=values.get("first_time_s"),
        wrong=int(values["wrong"]) if "wrong" in values else None,
        elements=size // width if width else None,
        kind=kind,
        redop=OPERATIONS[operation][1],
    )


def operation_tables(messages: Sequence[Message]) -> list[OperationTable]:
    """Group messages into tables in the layout of nccl-tests, one per operation, number of ranks and run."""
    groups: dict[tuple[str, int | None, int], list[Message]] = {}
    for message in messages:
        groups.setdefault((message.operation, message.ranks, message.run), []).append(message)
    return [
        OperationTable(
            OPERATIONS.get(operation, (operation, ""))[0],
            operation,
            ranks,
            sorted(rows, key=lambda row: row.size),
            any(row.first_time_s for row in rows),
        )
        for (operation, ranks, _), rows in groups.items()
    ]


def run_search(run: Run, attempt: Attempt) -> Search | None:
    """Read the trials of engine capacity."""
    if not engine_of(run.resolved).searches_capacity:
        return None
    section = run.resolved["capacity"]
    find = str(section["find"])
    names = [find, "fits", "trial_s", "memory_peak_bytes", "model_parameters", "tokens_per_s"]
    series = store.read_many([attempt.pk], names, rank=0)
    trials: dict[int, dict[str, float]] = {}
    for (_, metric, _), columns in series.items():
        for number, value in zip(columns.steps.tolist(), columns.values.tolist(), strict=True):
            trials.setdefault(number, {})[metric] = value
    return Search(
        find,
        [_trial(number, find, values) for number, values in sorted(trials.items()) if find in values],
        int(section["at_most"]),
        _limit_bytes(run, attempt),
        run.state == RunState.FINISHED,
        run.is_final and run.state != RunState.FINISHED,
        _per_node(run, attempt),
    )


def _trial(number: int, find: str, values: Mapping[str, float]) -> Trial:
    parameters = values.get("model_parameters")
    return Trial(
        number,
        int(values[find]),
        bool(values.get("fits")),
        values.get("trial_s"),
        values.get("memory_peak_bytes"),
        int(parameters) if parameters is not None else None,
        values.get("tokens_per_s"),
    )


def _limit_bytes(run: Run, attempt: Attempt) -> float | None:
    """Return the memory limit of a process in bytes: the configured one on a CPU, else the reported GPU memory."""
    hardware = attempt.node.hardware if attempt.node else {}
    gpus = hardware.get("gpus") or []
    if gpus and DEVICES[run.resolved["cluster"]["device"]].may_use_gpus:
        return min((float(gpu["memory_bytes"]) for gpu in gpus if gpu.get("memory_bytes")), default=None)
    mib = run.resolved["launcher"].get("memory_limit_mib")
    return float(mib) * 2**20 if mib else None


def _per_node(run: Run, attempt: Attempt) -> int:
    """Return the number of ranks that such a node takes: one per GPU, or its cores / threads per rank."""
    if attempt.node is None:
        return 0
    if DEVICES[run.resolved["cluster"]["device"]].may_use_gpus and (gpus := gpu_count(attempt.node)):
        return gpus
    return int(attempt.node.hardware.get("cpu_cores") or 0) // int(run.resolved["launcher"]["threads_per_rank"])


def engine_context(run: Run, attempt: Attempt | None) -> dict[str, Any]:
    """Return the part of a run page that is specific to the engine of the run."""
    messages = own_messages(run, attempt) if attempt else []
    search = run_search(run, attempt) if attempt else None
    is_measuring = attempt is not None and engine_of(run.resolved).measures_bandwidth
    return {
        "device_map": device_map.draw(device_grid(run)),
        "step_fps": run_step_fps(run, attempt) if attempt else None,
        "operations": operation_tables(messages),
        "search": search,
        "has_bandwidth": is_measuring or bool(messages),
        "engine_summary": capacity.answer(search) if search else bandwidth.caption(messages),
    }
