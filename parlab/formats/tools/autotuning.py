"""DeepSpeed's autotuner: metrics.json, exp.json, model_info.json, summary.txt, and a results directory as a whole.

Source: deepspeed/autotuning and runtime/engine.py. Times in metrics.json are ms up to DeepSpeed 0.6 and us since 0.7;
from 0.7 until early 2023 throughput was 1000 times too low and FLOPS_per_gpu a million times. Zero means that an
experiment failed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from parlab.formats.documents import markdown
from parlab.formats.documents.blocks import parsed
from parlab.formats.documents.tables import experiment_settings
from parlab.formats.grammar.endings import ending
from parlab.formats.grammar.jsontext import loads
from parlab.formats.grammar.pairs import Pair
from parlab.formats.grammar.records import Ending, Field, Record, figure, unread
from parlab.formats.grammar.sniff import Signs
from parlab.formats.grammar.stepcells import record_of
from parlab.formats.grammar.units import to_float
from parlab.formats.launch import flatten
from parlab.formats.schema import Config

SIGNS: Signs = (
    (re.compile(r'"FLOPS_per_gpu": *[\d.]'), 20),
    (re.compile(r'"ds_config": *\{'), 20),
    (re.compile(r'"(?:trainable_)?num_params": *\d'), 10),
    (re.compile(r"^\| *tuning_space *\|"), 15),
    (re.compile(r"^Tuning completed in \d"), 5),
)

# A step takes a millisecond to some seconds: values from 10,000 are us (from 10 ms), smaller ones ms (up to 10 s).
_MICROSECONDS_FROM = 10_000.0
MAX_EXPERIMENTS = 400
_WANTED = ("exp.json", "metrics.json", "model_info.json", "summary.txt", "stderr.log", "ds_config_optimal.json")


def read(lines: Iterable[str]) -> Iterator[Record]:
    """Read one file of the autotuner: a JSON file, or the pipe table of summary.txt."""
    return parsed(lines, _records)


def _records(text: str) -> Iterator[Record]:
    if not text.lstrip().startswith("{"):
        yield from markdown.read(text.splitlines(keepends=True))
        return
    try:
        data = loads(text)
    except ValueError as problem:
        yield unread(1, f"invalid JSON: {str(problem)[:100]}", text)
        return
    yield Record("config", 1, data=Config(line=1, data=data))
    if "latency" in data or "throughput" in data:
        yield from metrics(data)
    else:
        yield from experiment(data)


def experiment(data: Mapping[str, Any], line: int = 1) -> Iterator[Record]:
    """Read exp.json, ds_config.json or model_info.json as a launch."""
    arguments: dict[str, Any] = experiment_settings(str(data.get("name", "")))
    for name, value in flatten(data):
        arguments[name.removeprefix("ds_config.")] = value
    gpus, nodes = data.get("num_gpus"), data.get("num_nodes")
    if isinstance(gpus, int) and isinstance(nodes, int):
        arguments["world_size"] = gpus * nodes
    yield Record("launch", line, data=arguments, opens=True)


def metrics(data: Mapping[str, Any], line: int = 1) -> Iterator[Record]:
    """Read metrics.json, and determine the unit of its times and the factor of its throughput."""
    numbers = {name: value for name in data if (value := to_float(str(data[name]))) is not None and value > 0}
    latency = numbers.get("latency", 0.0)
    if not latency:
        yield Record("end", line, data=Ending("crashed", "metrics.json holds no latency: the experiment failed"))
        return
    unit, scale = ("us", 1e6) if latency >= _MICROSECONDS_FROM else ("ms", 1e3)
    seconds = latency / scale
    throughput = numbers.get("throughput")
    # A batch contains at least one sample: a product below one is the tool's division by 1000.
    factor = 1e-3 if throughput and throughput * seconds < 0.999 else 1.0
    fields = [
        Field("step_time_s", "latency", unit, 1 / scale),
        Field("samples_per_s", "throughput", "samples/s", 1 / factor),
        Field("flops_per_gpu", "FLOPS_per_gpu", "FLOP/s", 1e6 if factor < 1 else 1.0),
    ]
    cells = [(Pair(f.key, str(data[f.key]), f.unit, numbers[f.key]), f) for f in fields if f.key in numbers]
    yield from record_of("step", line, None, None, cells)
    timers: dict[str, float] = {
        name: numbers[name] / scale for name in ("forward", "backward", "step") if name in numbers
    }
    yield Record("timers", line, timers)
    yield figure(line, "time_unit_s", 1 / scale, f"times are read as {unit}, by their size", unit)
    if throughput:
        basis = "throughput as printed over what latency and a whole batch give"
        yield figure(line, "logged_throughput_factor", factor, basis)
        yield figure(line, "train_batch_size", round(throughput / factor * seconds, 3), "throughput * latency")


def is_results(names: Iterable[str]) -> bool:
    """Return whether entries are those of a results directory."""
    return bool({"autotuning_exps", "autotuning_results"} & set(names))


def wanted(path: str) -> bool:
    """Return whether a file belongs to the results; other files of the directory are separate logs."""
    return path.endswith(_WANTED) or ("autotuning_exps/" in path and path.endswith(".json"))


def read_results(files: Mapping[str, str]) -> Iterator[Record]:
    """Read a results directory: relative path -> text. One section and one segment per experiment.

    An experiment without metrics.json (model_info.json for the profile run) has failed; its reason is the last error
    of stderr.log.
    """
    names = sorted({name for path in files if (name := _experiment_of(path))})
    for name in names[:MAX_EXPERIMENTS]:
        yield Record("heading", 0, data=name)
        text = next((files[path] for path in files if _experiment_of(path) == name and _is_plan(path)), None)
        plan = _loads(text)
        yield from experiment(plan if isinstance(plan, dict) else {"name": name})
        yield from _outcome(name, files)
    for path in sorted(files):
        if path.endswith("summary.txt"):
            yield Record("heading", 0, data=path)
            yield from markdown.read(files[path].splitlines(keepends=True))
        elif path.endswith("ds_config_optimal.json") and (data := _loads(files[path])) is not None:
            yield Record("config", 1, data=Config(line=1, section=path, data=data))


def _outcome(name: str, files: Mapping[str, str]) -> Iterator[Record]:
    ending_file = "model_info.json" if name == "profile_model_info" else "metrics.json"
    path = next((p for p in files if _experiment_of(p) == name and p.endswith(f"/{ending_file}")), None)
    data = _loads(files[path]) if path else None
    if isinstance(data, dict) and ending_file == "metrics.json":
        yield from metrics(data)
        return
    if isinstance(data, dict):
        yield from experiment(data)
        return
    reason = f"no {ending_file}: the experiment failed"
    errors = next((files[p] for p in files if _experiment_of(p) == name and p.endswith("stderr.log")), "")
    for text in errors.splitlines()[-2000:]:
        end = ending(text)
        if end and end.state == "crashed" and not end.reason.startswith("Traceback"):
            reason = f"no {ending_file}: {end.reason}"
    yield Record("end", 0, data=Ending("crashed", reason))


def _experiment_of(path: str) -> str | None:
    parts = path.split("/")
    for folder in ("autotuning_exps", "autotuning_results"):
        if folder in parts[:-1]:
            inner = parts[parts.index(folder) + 1 :]
            if folder == "autotuning_exps" and len(inner) == 1 and inner[0].endswith(".json"):
                return inner[0].removesuffix(".json")
            if folder == "autotuning_results" and len(inner) == 2:
                return inner[0]
    return None


def _is_plan(path: str) -> bool:
    return path.endswith("/exp.json") or "autotuning_exps/" in path


def _loads(text: str | None) -> Any:
    try:
        return None if text is None else loads(text)
    except ValueError:
        return None
