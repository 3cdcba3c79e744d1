"""Templates of reports, filled for the existing runs of an experiment. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from parlab.charts.fields import SCHEDULES

from .pivot import Record, fields_of

MAX_SECTIONS = 24


class Template(NamedTuple):
    """A report template; `text` returns the report for the records of an experiment."""

    title: str
    says: str
    text: Callable[[str, Sequence[Record]], str]


def blank(_name: str, _records: Sequence[Record]) -> str:
    """Return a report with one figure."""
    return "{{ figure throughput }}\n\nDescribe the figure here.\n"


def case(_name: str, records: Sequence[Record]) -> str:
    """Return a section per run with its configuration and results."""
    fields = fields_of(records)
    parts = []
    for record in records[:MAX_SECTIONS]:
        run = record["run"]
        numbers = [field for field in (*_NUMBERS, *fields) if field in record and _is_result(field)]
        list_of_numbers = "\n".join(
            f"- `{field.removeprefix('figure.')}` = {_value(field, run)}" for field in dict.fromkeys(numbers)
        )
        parts.append(
            f"## Run {run}\n\n### Configuration\n\n{{{{ config run={run} }}}}\n\n"
            f"### Status\n\n{list_of_numbers or 'No results yet.'}\n\n"
            f"### Snapshots\n\n{{{{ panel configuration run={run} }}}}\n\n{{{{ panel results run={run} }}}}\n"
        )
    return "\n".join(parts) or blank("", [])


def schedules(_name: str, records: Sequence[Record]) -> str:
    """Return a table per schedule: networks as rows, micro batch sizes as columns."""
    fields = fields_of(records)
    network = _varied(records, [f for f in fields if "network" in f.lower() or f.startswith("cluster.")])
    names = list(dict.fromkeys(str(r["parallel.schedule"]) for r in records if "parallel.schedule" in r))
    rows = f'rows="{network}" ' if network else ""
    parts = [
        f"## {SCHEDULES.get(name, name)} based pipeline parallel\n\n"
        f"{{{{ table pivot {rows}columns=train.micro_batch_size value=step_time_s"
        f' where="parallel.schedule={name}" decimals=printed unit=cells }}}}\n'
        for name in names
    ]
    for record in records:
        if "parallel.schedule" not in record and record.get("state") != "finished" and record.get("reason"):
            title, run = record.get("section", record["label"]), record["run"]
            text = f"Run {run}: {{{{ value state run={run} }}}}. {{{{ value reason run={run} }}}}"
            parts.append(f"## {title}\n\n{text}\n")
    return "\n".join(parts) or blank("", [])


def scaling(_name: str, records: Sequence[Record]) -> str:
    """Return an overview and a section per run: arguments, utilisation, memory, time per sample, timers."""
    columns = ["GPUs=gpus", "Global batch=train.global_batch_size"]
    columns += [
        f"{title}={field}"
        for title, field in (
            ("GPU util %", "gpu_util_pct .0"),
            ("Minimum memory", "memory_min_bytes MiB .0"),
            ("Peak memory", "memory_max_bytes MiB .0"),
            ("ms per sample", "ms_per_sample .2"),
        )
        if field.split(" ")[0] in fields_of(records)
    ]
    parts = [
        "{{ figure throughput }}\n",
        f'{{{{ table runs columns="Run=run, {", ".join(columns)}" sort=gpus }}}}\n',
    ]
    parts += [_scaling_page(record) for record in records[:MAX_SECTIONS]]
    return "\n".join(parts)


def _scaling_page(record: Record) -> str:
    run = record["run"]
    gpus = record.get("gpus")
    size = "Unknown number of GPUs" if gpus is None else f"{gpus} {'GPU' if gpus == 1 else 'GPUs'}"
    lines = [f"## {size} (run {run})\n"]
    if any(name.startswith("argument.") for name in record):
        lines.append(f"{{{{ table run run={run} what=arguments }}}}\n")
    if "gpu_util_pct" in record:
        lines.append(f"GPU util: {{{{ value gpu_util_pct run={run} decimals=0 }}}}\n")
    if "memory_max_bytes" in record:
        low = (
            f"{{{{ value memory_min_bytes run={run} unit=MiB decimals=0 }}}} to "
            if "memory_min_bytes" in record
            else ""
        )
        total = (
            f" of {{{{ value memory_total_bytes run={run} unit=MiB decimals=0 }}}}"
            if record.get("memory_total_bytes")
            else ""
        )
        lines.append(f"GPU memory: {low}{{{{ value memory_max_bytes run={run} unit=MiB decimals=0 }}}}{total}\n")
    if "ms_per_sample" in record:
        lines.append(f"{{{{ value ms_per_sample run={run} decimals=2 }}}} per sample\n")
    if any(name.startswith("timer.") for name in record):
        lines.append(f"{{{{ table run run={run} what=timers }}}}\n")
    return "\n".join(lines)


def published(_name: str, records: Sequence[Record]) -> str:
    """Return questions and the main scaling table with a row per model."""
    fields = fields_of(records)
    named = next((f for f in fields if f.removeprefix("argument.") in ("model size", "model")), "label")
    candidates = [
        ("Model size", named), ("Attention heads", "model.num_attention_heads"), ("Hidden size", "model.hidden_size"),
        ("Layers", "model.num_layers"), ("TP", "parallel.tensor_parallel_size"),
        ("PP", "parallel.pipeline_parallel_size"), ("DP", "parallel.data_parallel_size"),
        ("MP", "model_parallel_size"), ("GPUs", "gpus"), ("Micro BS", "train.micro_batch_size"),
        ("Global BS", "train.global_batch_size"), ("TFLOP/s per GPU", "tflops_per_gpu"),
    ]  # fmt: skip
    columns = [f"{title}={field}" for title, field in candidates if field in fields]
    columns += [
        f"{field.removeprefix('figure.')}={field}{' .1' if _is_fraction(records, field) else ''}"
        for field in fields
        if field.startswith("figure.") and "/" not in field
    ]
    return (
        "## Questions\n\n- How many parameters fit on one node?\n- How many nodes does the target model need?\n"
        "- How many tokens per second does each configuration train?\n\n## Results\n\n"
        f'{{{{ table runs columns="{", ".join(columns)}" }}}}\n'
    )


def autotuning(_name: str, records: Sequence[Record]) -> str:
    """Return baseline, hand-tuned and tuned results side by side, then the tuning spaces with their total."""
    fields = fields_of(records)
    parts = []
    if "variant" in fields:
        rows = next((f for f in fields if f.removeprefix("argument.") in ("model name", "model")), "")
        along = f'rows="{rows}" ' if rows else ""
        parts.append(
            f"## Throughput\n\n{{{{ table pivot {along}columns=variant value=samples_per_s decimals=printed"
            ' details="z = {parallel.zero_stage}, gas = {gradient_accumulation_steps},'
            ' mbs = {train.micro_batch_size}" }}\n'
        )
        parts.append("## Tuning spaces\n\n{{ table spaces }}\n")
    return "\n".join(parts) or published("", records)


TEMPLATES: dict[str, Template] = {
    "blank": Template("Figure and text", "The throughput figure and space for text.", blank),
    "case": Template("Configuration and result", "Configuration and results of each run.", case),
    "schedules": Template(
        "Schedules on networks", "A table per schedule: networks as rows, micro batch sizes as columns.", schedules
    ),
    "scaling": Template(
        "Scaling", "An overview and a section per run: arguments, memory, ms per sample, timers.", scaling
    ),
    "published": Template(
        "Questions and scaling table", "Questions and a scaling table with a row per model.", published
    ),
    "autotuning": Template(
        "Autotuning", "Baseline, hand-tuned and tuned results, and the best result of each tuning space.", autotuning
    ),
}

_NUMBERS = ("step_time_s", "samples_per_s", "tokens_per_s", "memory_max_bytes")


def _is_result(field: str) -> bool:
    return field in _NUMBERS or field.startswith("figure.")


def _value(field: str, run: int) -> str:
    quoted = f'"{field}"' if " " in field else field
    return f"{{{{ value {quoted} run={run} }}}}"


def _varied(records: Sequence[Record], fields: Sequence[str]) -> str:
    """Return the field with the most distinct values; empty if no field varies."""
    counts = {field: len({repr(r[field]) for r in records if field in r}) for field in fields}
    most = max(counts, key=lambda field: counts[field], default="")
    return most if counts.get(most, 0) > 1 else ""


def _is_fraction(records: Sequence[Record], field: str) -> bool:
    values = [r[field] for r in records if isinstance(r.get(field), float)]
    return any(value != int(value) for value in values)
