"""One run: its step time, configuration, command and figures."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from django.utils import timezone

from parlab.charts.format import field_value, quantity
from parlab.charts.points import Spread
from parlab.lab.forms.config_layout import unused_fields
from parlab.lab.models import Attempt, Config, Run
from runners.config import engine_of, sections
from runners.wire.protocol import RunState

from .figures import figure_title, is_speed, stated


def step_time(summary: Mapping[str, Any]) -> Spread | None:
    """Read the step time of a summary in seconds: its median with p10 and p90, or a published mean."""
    times = summary.get("step_time_s") or {}
    middle = times.get("median", times.get("mean"))
    return None if middle is None else Spread(float(middle), times.get("p10"), times.get("p90"))


def model_text(resolved: Mapping[str, Any]) -> str:
    """Return what a configuration trains in few words: `GPT, 4 layers of 128`; empty if it is unknown."""
    model = resolved.get("model") or {}
    layers, width = model.get("num_layers"), model.get("hidden_size")
    if not layers or not width or not engine_of(resolved).has_steps:
        return ""
    kind = str(model.get("kind") or "transformer")
    return f"{kind.upper() if len(kind) < 5 else kind}, {layers} layer{'' if layers == 1 else 's'} of {width:,}"


def run_figures(run: Run) -> list[tuple[str, str]]:
    """List the further figures that a file states of a run, as title and text, speeds first."""
    figures = sorted(stated(run.summary).items(), key=lambda figure: not is_speed(figure[0]))
    return [(figure_title(name), text) for name, text in figures]


def remaining_s(run: Run, attempt: Attempt) -> float | None:
    """Estimate the seconds until a running run ends, from its median step time or else from its progress so far."""
    done = attempt.last_step or 0
    if run.state != RunState.RUNNING or not done or not run.iterations:
        return None
    spread = step_time(attempt.summary)
    if spread is not None:
        return spread.median * (run.iterations - done)
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
    """Arrange a resolved configuration in two levels; mark swept fields and those that differ from the default.

    A field that the layout fills (gpus_per_node) counts as changed only if the config sets it.
    """
    swept, models, arranged = set(swept), sections(), []
    for section, fields in resolved.items():
        if not isinstance(fields, Mapping) or not fields:
            continue
        rows = []
        defaults = models[section].model_fields if section in models else {}
        for name, value in fields.items():
            default = defaults[name].default if name in defaults else None
            is_swept = f"{section}.{name}" in swept
            configured = value if is_swept else config.data.get(section, {}).get(name, default)
            is_changed = configured != default
            rows.append(ConfigField(name, field_value(value), field_value(default), is_changed, is_swept))
        arranged.append(ConfigSection(section, rows))
    return arranged


def sections_in_use(run: Run, arranged: Sequence[ConfigSection]) -> tuple[list[ConfigSection], list[ConfigSection]]:
    """Split a configuration into the fields that the engine of the run reads, and the others.

    An imported run without an engine has only fields that its file states: all are in use.
    """
    if not run.resolved.get("parallel", {}).get("engine"):
        return list(arranged), []
    names = unused_fields(run.resolved)

    def part(is_unused: bool) -> list[ConfigSection]:
        sections_of_part = [
            section._replace(
                fields=[field for field in section.fields if (f"{section.name}.{field.name}" in names) == is_unused]
            )
            for section in arranged
        ]
        return [section for section in sections_of_part if section.fields]

    return part(is_unused=False), part(is_unused=True)


def command_line(attempt: Attempt) -> str:
    return shlex.join(attempt.command)


def flat(data: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Flatten nested data into dotted names with texts."""
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
    """Return shell commands that repeat an attempt from a checkout: write its configuration, run its command."""
    if not attempt.command:
        return ""
    command = list(attempt.command)
    if "--config" in command[:-1]:
        command[command.index("--config") + 1] = "config.json"
    line = " ".join([*_variables(run, attempt), shlex.join(_from_path(command))])
    # JSON on a single line cannot end the here-document.
    return f"cat > config.json <<'END'\n{json.dumps(run.resolved)}\nEND\n{line}\n"


def _from_path(command: Sequence[str]) -> list[str]:
    """Replace the paths of Python and of programs in its directory by their names in a virtual environment."""
    python = PurePosixPath(command[0])
    if "python" not in python.name:
        return list(command)
    beside = [PurePosixPath(part).parent == python.parent and part.startswith("/") for part in command]
    names = ["python" if part == command[0] else PurePosixPath(part).name for part in command]
    return [name if near else part for part, name, near in zip(command, names, beside, strict=True)]


def _variables(run: Run, attempt: Attempt) -> list[str]:
    """Return the variables that the attempt had in addition to those of its node; the code is that of the checkout."""
    variables = attempt.environment.get("variables")
    threads = str(run.resolved.get("launcher", {}).get("threads_per_rank", 1))
    values = {"OMP_NUM_THREADS": threads, **(variables if isinstance(variables, Mapping) else {})}
    internal = ("PARLAB_RUN", "PYTHONPATH", "PYTHONUNBUFFERED")
    assignments = [
        f"{name}={shlex.quote(str(value))}" for name, value in sorted(values.items()) if name not in internal
    ]
    return ['PYTHONPATH="$PWD"', *assignments]
