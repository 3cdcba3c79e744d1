"""Megatron-LM's lines about a launch: sizes, parameters, and the lines of progress.txt."""

from __future__ import annotations

import re

from parlab.formats.grammar.pairs import Pair
from parlab.formats.grammar.records import Field, Record
from parlab.formats.grammar.stepcells import record_of
from parlab.formats.grammar.units import slug, to_float, to_int

_WORLD = re.compile(r"using world size: (\d{1,9})(.*)")
_SIZE = re.compile(r"([a-z]+)(?:-model)?-parallel[- ]size: (\d{1,9})")
_CONSTANT = re.compile(r"setting number of micro-?batches to constant (\d{1,9})")
_PARAMETERS = re.compile(r"number of parameters on .{0,60}rank \(?([\d, ]{1,40})\)?: (\d{1,18})")
_FLOPS = re.compile(r"Effective Tera Flops per GPU: (\S{1,30}) and total parameters (\S{1,30}) B")
_BILLIONS = re.compile(r"Total number of parameters in billions: (\S{1,30})")
_PROGRESS = re.compile(r"\s*Job ID: ?(\S{0,80})\s+# GPUs: (\d{1,9})\s+(.*)")
MARKS = ("world size", "micro", "Tera Flops", "billions", "number of parameters", "# GPUs:")


def stated(line: int, time: str | None, text: str, iteration: int | None) -> list[Record]:
    """Read a line about the launch (sizes, parameters, a line of progress.txt); return [] for any other line."""
    if match := _WORLD.search(text):
        return [Record("launch", line, data=_world(match), opens=True)]
    if match := _CONSTANT.search(text):
        return [Record("launch", line, data={"num_micro_batches": int(match[1])})]
    if match := _FLOPS.search(text):
        flops = ("flops_per_gpu", "Effective Tera Flops per GPU", match[1], "TFLOP/s", 1e12)
        return _metrics(line, iteration, flops, ("parameters", "total parameters", match[2], "B", 1e9))
    if match := _BILLIONS.search(text):
        return _metrics(line, None, ("parameters", "Total number of parameters in billions", match[1], "B", 1e9))
    if match := _PARAMETERS.search(text):
        return _metrics(line, None, ("parameters_per_rank", "number of parameters", match[2], "", 1.0))
    if match := _PROGRESS.match(text):
        return _progress(line, time, match)
    return []


def _world(match: re.Match[str]) -> dict[str, object]:
    """Read `using world size: 64 and model-parallel size: 4` and the longer lines of later versions."""
    names = {"data": "data_parallel_size", "model": "model_parallel_size"}
    sizes = {names.get(kind, f"{kind}_model_parallel_size"): int(size) for kind, size in _SIZE.findall(match[2])}
    return {"world_size": int(match[1]), **sizes}


def _metrics(line: int, iteration: int | None, *figures: tuple[str, str, str, str, float]) -> list[Record]:
    cells = [
        (Pair(key, text, unit, to_float(text)), Field(name, key, unit, scale))
        for name, key, text, unit, scale in figures
    ]
    return record_of(
        "metrics", line, None, iteration, [(cell, field) for cell, field in cells if cell.value is not None]
    )


def _progress(line: int, time: str | None, match: re.Match[str]) -> list[Record]:
    """Read one line of progress.txt (megatron-core: append_to_progress_log)."""
    cells = [part.partition(":") for part in match[3].split("\t")]
    launch = Record("launch", line, data={"world_size": int(match[2]), "job_id": match[1]}, time=time)
    launch.opens = match[3].startswith("Starting job")
    named: list[tuple[Pair, Field]] = []
    iteration: int | None = None
    for label, colon, text in cells:
        key, number = label.strip(), text.strip().split(" ")[0]
        value = to_float(number)
        if not colon or value is None:
            continue
        if key == "Iteration":
            iteration = to_int(number)
            continue
        unit = text.strip().partition(" ")[2] or ("TFLOP/s/GPU" if "TFLOP/s/GPU" in key else "")
        scale = 1e12 if "TFLOP/s" in unit + key else 1.0
        name = slug(key.partition("(")[0]) + ("_flops_per_gpu" if scale != 1.0 else "")
        field = Field(name.replace("throughput_", ""), key, unit, scale)
        named.append((Pair(key, text.strip(), unit, value), field))
    return [launch, *record_of("metrics", line, None, iteration, named)]
