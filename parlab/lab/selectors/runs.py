"""Runs: lines of a table, and the configuration and command of one."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from django.utils import timezone

from parlab.charts.format import Unit, field_title, field_value, quantity, unit_for
from parlab.charts.points import Spread
from parlab.lab.models import Attempt, Config, Run
from runners.config import sections
from runners.protocol import RunState

from .figures import figure_title, stated
from .findings import Doubts
from .utilisation import measured_pct

MAX_FIGURES = 8
"""Columns of a table of runs for figures that have none of their own."""


class RunRow(NamedTuple):
    """One run with what its summary says, as tables and pages show it."""

    run: Run
    values: list[str]
    """Texts of the axes that the table has, in its order."""
    step_time: Spread | None
    step: int | None
    reason: str
    doubts: Doubts = {}
    """Findings about its numbers: name of METRICS, or "run" for those of no single number."""
    mfu_pct: float | None = None
    """Computed here; what a file states is among the figures."""
    gpu_util_pct: float | None = None
    figures: Sequence[str] = ()
    """Texts of the further figures that the table has, in its order."""

    @property
    def percent(self) -> int:
        """How much of the run is done."""
        return min(100, round(100 * (self.step or 0) / max(self.run.iterations, 1)))


class RunRows(NamedTuple):
    """A table of runs: axes as headings, rows, and the one unit of each column.

    Columns that no run can fill any more are left out: published figures often lack them.
    """

    axes: list[str]
    rows: list[RunRow]
    time: Unit
    samples: Unit
    tokens: Unit
    memory: Unit
    figures: list[str]
    """Further figures that files state of their runs, under the files' own names."""
    has_time: bool
    has_spread: bool
    has_samples: bool
    has_tokens: bool
    has_memory: bool
    has_phases: bool
    has_mfu: bool
    has_utilisation: bool
    has_shares: bool
    """Whether a figure could show such shares, now or later."""
    has_reasons: bool

    @property
    def has_numbers(self) -> bool:
        """Whether a figure could show anything of these runs, now or later."""
        return self.has_time or self.has_samples or self.has_tokens or self.has_memory


def step_time(summary: Mapping[str, Any]) -> Spread | None:
    """Read the step time of a summary: its median with p10 and p90, or the mean where that was published."""
    found = summary.get("step_time_s") or {}
    middle = found.get("median", found.get("mean"))
    return None if middle is None else Spread(float(middle), found.get("p10"), found.get("p90"))


def run_row(
    run: Run, *, step: int | None, waiting: str = "", axes: Sequence[str] = (), doubts: Doubts | None = None
) -> RunRow:
    values = [field_value(run.point[axis]) if axis in run.point else "" for axis in axes]
    reason = waiting if run.state == RunState.QUEUED and waiting else run.reason
    return RunRow(
        run,
        values,
        step_time(run.summary),
        step,
        reason,
        doubts or {},
        mfu_pct=measured_pct(run.summary, "mfu"),
        gpu_util_pct=measured_pct(run.summary, "gpu_util"),
    )


def run_rows(runs: Iterable[Run], *, waiting: Mapping[int, str], doubts: Mapping[int, Doubts] | None = None) -> RunRows:
    """Shape runs (of `experiment_runs`) into a table.

    By run id, `waiting` says why a queued one waits and `doubts` which of its numbers findings are about.
    """
    runs = list(runs)
    axes = list(dict.fromkeys(axis for run in runs for axis in run.point))
    further = {run.pk: stated(run.summary) for run in runs}
    figures = list(dict.fromkeys(name for found in further.values() for name in found))[:MAX_FIGURES]
    rows = [
        run_row(
            run,
            step=getattr(run, "last_step", None),
            waiting=waiting.get(run.pk, ""),
            axes=axes,
            doubts=(doubts or {}).get(run.pk),
        )._replace(figures=[further[run.pk].get(name, "") for name in figures])
        for run in runs
    ]
    open_end = not all(run.is_final for run in runs)
    return RunRows(
        [field_title(axis) for axis in axes],
        rows,
        unit_for((row.step_time.median for row in rows if row.step_time), "s"),
        unit_for((run.samples_per_s for run in runs), "samples/s"),
        unit_for((run.tokens_per_s for run in runs), "tokens/s"),
        unit_for((run.memory_max_bytes for run in runs), "B"),
        figures=[figure_title(name) for name in figures],
        has_time=open_end or any(row.step_time or row.run.state == RunState.OOM for row in rows),
        has_spread=open_end or any(row.step_time and row.step_time.p10 for row in rows),
        has_samples=open_end or any(run.samples_per_s for run in runs),
        has_tokens=open_end or any(run.tokens_per_s for run in runs),
        has_memory=open_end or any(run.memory_max_bytes for run in runs),
        has_phases=open_end or any(run.summary.get("timers_s") for run in runs),
        has_mfu=any(row.mfu_pct is not None for row in rows),
        has_utilisation=any(row.gpu_util_pct is not None for row in rows),
        has_shares=open_end or any(row.mfu_pct is not None or row.gpu_util_pct is not None for row in rows),
        has_reasons=open_end or any(row.reason for row in rows),
    )


def run_figures(run: Run) -> list[tuple[str, str]]:
    """List the further figures that a file states of a run: title and text."""
    return [(figure_title(name), text) for name, text in stated(run.summary).items()]


def remaining_s(run: Run, attempt: Attempt) -> float | None:
    """Estimate the seconds until a running run ends, from its median step or else its pace so far."""
    done = attempt.last_step or 0
    if run.state != RunState.RUNNING or not done or not run.iterations:
        return None
    measured = step_time(attempt.summary)
    if measured is not None:
        return measured.median * (run.iterations - done)
    if attempt.started_at is None:
        return None
    return (timezone.now() - attempt.started_at).total_seconds() / done * (run.iterations - done)


class ConfigField(NamedTuple):
    name: str
    text: str
    default: str
    is_changed: bool
    is_swept: bool


class ConfigSection(NamedTuple):
    name: str
    fields: list[ConfigField]


def config_sections(resolved: Mapping[str, Any], swept: Iterable[str], config: Config) -> list[ConfigSection]:
    """Shape a resolved configuration into two levels; mark what was swept and what differs from the defaults.

    A field that the layout itself fills (gpus_per_node) counts as changed only where the config names it.
    """
    swept, known, shaped = set(swept), sections(), []
    for section, fields in resolved.items():
        if not isinstance(fields, Mapping) or not fields:
            continue
        shown = []
        defaults = known[section].model_fields if section in known else {}
        for name, value in fields.items():
            default = defaults[name].default if name in defaults else None
            is_swept = f"{section}.{name}" in swept
            given = value if is_swept else config.data.get(section, {}).get(name, default)
            shown.append(ConfigField(name, field_value(value), field_value(default), given != default, is_swept))
        shaped.append(ConfigSection(section, shown))
    return shaped


def command_line(attempt: Attempt) -> str:
    """Write an attempt's command as a shell takes it."""
    return shlex.join(attempt.command)


def flat(data: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Lay out nested facts as dotted names with texts."""
    rows: list[tuple[str, str]] = []
    for key, value in data.items():
        if isinstance(value, Mapping):
            rows += flat(value, f"{prefix}{key}.")
        elif isinstance(value, list):
            items = {str(index): item for index, item in enumerate(value)}
            plain = not any(isinstance(item, Mapping | list) for item in value)
            listed = ", ".join(map(str, value)) or "none"
            rows += [(f"{prefix}{key}", listed)] if plain else flat(items, f"{prefix}{key}.")
        elif key.endswith("_bytes") and isinstance(value, int | float):
            rows.append((f"{prefix}{key.removesuffix('_bytes')}", quantity(value, "B")))
        else:
            rows.append((f"{prefix}{key}", field_value(value) or "\u2013"))
    return rows


def by_hand(run: Run, attempt: Attempt) -> str:
    """Write the shell commands that repeat an attempt from a checkout: its configuration as a file, its own command."""
    if not attempt.command:
        return ""
    command = list(attempt.command)
    if "--config" in command[:-1]:
        command[command.index("--config") + 1] = "config.json"
    line = " ".join([*_variables(run, attempt), shlex.join(_from_path(command))])
    # JSON in one line holds no line that could end the here-document.
    return f"cat > config.json <<'END'\n{json.dumps(run.resolved)}\nEND\n{line}\n"


def _from_path(command: Sequence[str]) -> list[str]:
    """Name Python and the programs beside it as an activated virtual environment finds them."""
    python = PurePosixPath(command[0])
    if "python" not in python.name:
        return list(command)
    beside = [PurePosixPath(part).parent == python.parent and part.startswith("/") for part in command]
    names = ["python" if part == command[0] else PurePosixPath(part).name for part in command]
    return [name if near else part for part, name, near in zip(command, names, beside, strict=True)]


def _variables(run: Run, attempt: Attempt) -> list[str]:
    """Set what the attempt was given on top of its node's own variables; the code is that of the checkout."""
    given = attempt.environment.get("variables")
    threads = str(run.resolved.get("launcher", {}).get("threads_per_rank", 1))
    kept = {"OMP_NUM_THREADS": threads, **(given if isinstance(given, Mapping) else {})}
    left_out = ("PARLAB_RUN", "PYTHONPATH", "PYTHONUNBUFFERED")
    told = [f"{name}={shlex.quote(str(value))}" for name, value in sorted(kept.items()) if name not in left_out]
    return ['PYTHONPATH="$PWD"', *told]
