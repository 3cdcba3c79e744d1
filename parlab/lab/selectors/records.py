"""Runs as flat records with fields by name, for pivot tables and reports."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from parlab.lab.models import Run
from parlab.lab.selectors.analysis.utilisation import share_pct

from .figures import stated
from .findings import RUN, Doubts
from .runs import step_time

# Column of a finding (names of METRICS) -> the fields of a record that it concerns.
_DOUBTED = {
    "step_time": ("step_time_s", "step_time_p10_s", "step_time_p90_s", "ms_per_sample"),
    "samples": ("samples_per_s",),
    "tokens": ("tokens_per_s",),
    "memory": ("memory_max_bytes", "memory_min_bytes"),
    "mfu": ("mfu_pct", "hfu_pct"),
    RUN: ("run",),
}
# Parts of a summary that are plain numbers.
_PLAIN = ("ms_per_sample", "tflops_per_gpu", "model_flops_per_iteration", "skipped_iterations")
_CELLS = ("step_time_s", "samples_per_s", "tokens_per_s", "ms_per_sample")
"""Fields that the single cell of a run may state."""
MAX_CELL = 80
_NOT_VARIED = ("doubts", "printed", "kinds", "repeats_of", "repeat", "marks", "run", "label")


def run_records(runs: Iterable[Run], doubts: Mapping[int, Doubts] | None = None) -> list[dict[str, Any]]:
    """Return each run as a record: field -> value, numbers in SI units.

    `run`, `label`, `state`, `reason`, `origin`, `version` and `gpus`; settings under dotted names
    (`train.micro_batch_size`) and axes as named in the point; `step_time_s`, `samples_per_s` and the like,
    `timer.<name>` in seconds, `figure.<name>` for other values stated by its file; `doubts` by field, `marks`,
    `kinds`: how a number came about that is not printed, and `printed`: the cell texts of an imported table by field.
    """
    return [_record(run, (doubts or {}).get(run.pk, {})) for run in runs]


def _record(run: Run, doubts: Doubts) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "run": run.number,
        "label": run.shown_label,
        "state": run.state,
        "reason": run.reason,
        "origin": run.origin,
        "version": run.config.version,
        "gpus": int(run.gpus) if run.gpus else None,
        "emulated": True if run.is_emulated else None,
        "learnt_format": run.summary.get("learnt"),
        "kinds": run.summary.get("kinds"),
        **_numbers(run),
        **run_settings(run),
    }
    # None is a value where a program got it as an argument.
    record = {name: value for name, value in fields.items() if value is not None or name.startswith("argument.")}
    record["doubts"] = {
        field: tuple(findings) for column, findings in doubts.items() for field in _DOUBTED.get(column, (column,))
    }
    record["marks"] = run.marks
    if run.origin == Run.Origin.MEASURED:
        record["repeats_of"] = f"{run.config_id} {run.point}"
        if run.config.data.get("launcher", {}).get("repeats", 1) > 1:
            record["repeat"] = run.repeat
    record["printed"] = _printed_cells(run.summary.get("figures") or {}, record)
    return record


def _printed_cells(figures: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, str]:
    """Return the cell texts of an imported table by field; texts that do not start with a digit are not cells."""
    printed: dict[str, str] = {}
    for name, figure in figures.items():
        text = str(figure.get("text", "")) if isinstance(figure, Mapping) else ""
        if not text[:1].isdigit() or len(text) > MAX_CELL:
            continue
        printed[f"figure.{name}"] = text
        if name == "value":
            printed |= {field: text for field in _CELLS if _is_same(record.get(field), figure.get("value"))}
    return printed


def _is_same(number: Any, value: Any) -> bool:
    """Return whether a number equals that of a cell, which may be in thousandths."""
    if not isinstance(number, int | float) or not isinstance(value, int | float):
        return False
    return any(math.isclose(number, value * factor) for factor in (1.0, 1e-3))


def run_settings(run: Run) -> dict[str, Any]:
    """Return the settings of a run by dotted name; the axes of its point override the configuration."""
    settings: dict[str, Any] = {}
    for name, value in (run.launch.get("arguments") or {}).items():
        settings[f"argument.{name}"] = value
    for section, fields in run.resolved.items():
        if isinstance(fields, Mapping):
            settings |= {f"{section}.{name}": value for name, value in fields.items()}
    return {"gradient_accumulation_steps": _accumulation(run), **settings, **run.point}


def _accumulation(run: Run) -> int | None:
    stated_steps = run.launch.get("gradient_accumulation_steps")
    if stated_steps is not None:
        return int(stated_steps)
    train, parallel = run.resolved.get("train", {}), run.resolved.get("parallel", {})
    sizes = train.get("global_batch_size"), train.get("micro_batch_size"), parallel.get("data_parallel_size")
    return sizes[0] // (sizes[1] * sizes[2]) if all(sizes) else None


def _numbers(run: Run) -> dict[str, Any]:
    summary = run.summary
    spread = step_time(summary)
    memory = summary.get("memory_peak_bytes") or {}
    numbers: dict[str, Any] = {
        "step_time_s": spread.median if spread else None,
        "step_time_p10_s": spread.p10 if spread else None,
        "step_time_p90_s": spread.p90 if spread else None,
        "samples_per_s": run.samples_per_s,
        "tokens_per_s": run.tokens_per_s,
        "memory_min_bytes": memory.get("min"),
        "memory_max_bytes": memory.get("max", run.memory_max_bytes),
        "memory_total_bytes": ((summary.get("figures") or {}).get("gpu_mem_bytes") or {}).get("total"),
        **{f"loss_{end}": (summary.get("loss") or {}).get(end) for end in ("first", "last")},
        **{name: summary.get(name) for name in _PLAIN},
        **{f"{name}_pct": share_pct(summary, name) for name in ("mfu", "hfu", "gpu_util")},
    }
    for name, timer in (summary.get("timers_s") or {}).items():
        numbers[f"timer.{name}"] = timer.get("median")
    texts = stated(summary)
    for name, figure in (summary.get("figures") or {}).items():
        numbers[f"figure.{name}"] = _figure_value(figure, texts.get(name))
    return numbers


def _figure_value(figure: Any, text: str | None) -> Any:
    """Return the number of a figure without a unit, else the text in its file."""
    value = figure.get("value") if isinstance(figure, Mapping) else None
    return value if value is not None and not (figure.get("unit") and text) else text


def varied_fields(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """List the fields in which records differ, axes of the sweep first: the choices for rows and columns of a pivot."""
    names = dict.fromkeys(chain.from_iterable(records))
    return [name for name in names if name not in _NOT_VARIED and _differ([record.get(name) for record in records])]


def _differ(values: Sequence[object]) -> bool:
    """Whether any value is written differently from the first: 1, 1.0 and True are."""
    first = values[0]
    others = (value for value in values if value is not first)
    return any((type(value) is not type(first) or value != first) and repr(value) != repr(first) for value in others)
