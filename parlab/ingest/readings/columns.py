"""The role of a column in a published table: a setting, a measured quantity, or a label of the row. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

from parlab.formats.grammar.quantities import quantity_of_metric
from parlab.formats.grammar.units import unit_of
from parlab.formats.schema import Cell

Role = Literal["setting", "metric", "axis", "figure", "empty"]


class Column(NamedTuple):
    """A column's role; `name` is the dotted field of a setting, or the part of a summary that a metric fills."""

    title: str
    role: Role
    name: str = ""
    scale: float = 1.0
    """Factor to the normal unit, if heading or cells give a unit."""
    is_named: bool = False
    """The heading names the quantity; otherwise only the unit of the cells does."""


# Dotted field, or a normal name of a launch -> headings in lower case, letters and digits only.
_SETTINGS: dict[str, tuple[str, ...]] = {
    "train.micro_batch_size": ("microbatchsize", "microbatch", "microbs", "micbs", "mbs", "tmbspg", "mbspergpu"),
    "train.global_batch_size": ("globalbatchsize", "globalbatch", "globalbs", "globbs", "gbs", "batchsize", "batch"),
    "train.precision": ("precision", "dtype"),
    "model.num_layers": ("layers", "numlayers", "numberoflayers", "nlayers", "layer"),
    "model.hidden_size": ("hiddensize", "hidden", "hiddendim", "hiddendimension", "dmodel", "modeldim", "nembd"),
    "model.num_attention_heads": ("attentionheads", "attenheads", "heads", "numheads", "nheads", "numattentionheads"),
    "model.sequence_length": ("sequencelength", "seqlength", "seqlen", "maxseqlen", "contextlength"),
    "parallel.tensor_parallel_size": ("tp", "tpsize", "tensorparallel", "tensorparallelsize",
                                      "tensormodelparallelsize"),
    "parallel.pipeline_parallel_size": ("pp", "ppsize", "pipelineparallel", "pipelineparallelsize", "stages",
                                        "pipelinemodelparallelsize", "pipelinestages"),
    "parallel.data_parallel_size": ("dp", "dpsize", "dataparallel", "dataparallelsize"),
    "parallel.zero_stage": ("zero", "zerostage"),
    "parallel.schedule": ("schedule", "pipelineschedule"),
    "cluster.nodes": ("nodes", "numnodes", "numberofnodes", "nnodes"),
    "world_size": ("gpus", "gpu", "numgpus", "numberofgpus", "ngpus", "worldsize", "accelerators", "totalgpus"),
    "gradient_accumulation_steps": ("gas", "accumulationsteps", "gradientaccumulationsteps", "gradacc",
                                    "gradientaccumulation"),
    "model_parallel_size": ("mp", "mpsize", "modelparallelsize"),
}  # fmt: skip
_BY_HEADING = {heading: field for field, headings in _SETTINGS.items() for heading in headings}
# A model size is a label: `1.7B`.
_SIZES = frozenset({"size", "modelsize", "parameters", "params", "numparams", "model"})
# Settings that are not fields of RunConfig: name of the field -> name of the axis.
AXIS_NAMES = {"world_size": "GPUs"}

_UNIT = re.compile(r"[(\[]\s*([^()\[\]]{1,24}?)\s*[)\]]|(?:^|\s)in\s+([a-zA-Z/%]{1,12})\s*$|/\s*([a-zA-Z/]{1,12})\s*$")
_RATES = (
    ("samples_per_s", re.compile(r"\b(?:samples?|sequences?|seqs?|images?)\s*(?:/|per)\s*s(?:ec(?:ond)?)?\b")),
    ("tokens_per_s", re.compile(r"\btok(?:en)?s?\s*(?:/|per)\s*s(?:ec(?:ond)?)?\b")),
    ("ms_per_sample", re.compile(r"\b(?:ms|milliseconds?)\s*(?:/|per)\s*(?:sample|sequence)\b")),
)
_TIME_PER_STEP = re.compile(r"\b(milli)?seconds? per (?:iteration|step)\b|\biteration time in seconds\b")
_PER_GPU = re.compile(r"/\s*(?:gpu|device)|per\s+(?:gpu|device)")
_ALL_GPUS = re.compile(r"aggreg|total|\ball\b|overall")
_TIME = re.compile(r"\b(?:time|latency|duration|runtime|speed)\b|\b(?:sec(?:onds)?|s|ms)\s*/\s*(?:it|iter|step)")
_OF_STEP = re.compile(r"\b(?:steps?|iter(?:ation)?s?|it)\b")
# Times of something else than a step.
_OTHER_TIME = re.compile(
    r"\b(?:epoch|total|overall|train(?:ing)?|wall|run|jobs?|start\w*|launch|load\w*|checkpoint\w*|sav\w+|data|forward|fwd"
    r"|backward|bwd|optim\w+|comm\w*|all-?reduce|bubble|wait\w*|idle|token|ttft|tpot|itl|prefill|decode|compil\w+|eval\w*"
    r"|valid\w*|test\w*|infer\w*|set-?up|init\w*|convergence|accuracy|target|end-to-end|e2e)\b"
)
# Sizes of something else than the memory of a GPU.
_OTHER_SIZE = re.compile(
    r"\b(?:model|data\w*|checkpoint\w*|param\w*|weights?|gradients?|optimizer|activations?|states?|disk|files?|host|cpu|size"
    r"|traffic|volume|bandwidth|buffers?|messages?|download)\b"
)
# Quantity of a metric -> part of a summary.
_PARTS = {
    "memory_bytes": "memory_peak_bytes",
    **{name: name for name in ("step_time_s", "samples_per_s", "tokens_per_s", "tflops_per_gpu", "memory_peak_bytes")},
}
_MEMORY = re.compile(r"\bmem(?:ory)?\b|\bvram\b")
_OTHER = re.compile(
    r"\b(?:metric|val(?:ue)?|score|speed-?up|improvement|efficiency|bandwidth|busbw|algbw|loss|ppl|perplexity"
    r"|throughput|mfu|hfu|util\w*|flops?|tflops?|pflops?|fps|accuracy|tps|wps)\b|flop"
)
_PAIR = re.compile(
    r"^(.{1,60}?[A-Za-z)])\s*(?:[:=]\s*|\s)(\d[\d,]*(?:\.\d+)?)\s*$|^(\d[\d,]*)\s+([A-Za-z][\w ]{1,40})$"
)


def compact(text: str) -> str:
    """Reduce a heading to lower-case letters and digits: a wrapped `Lay ers` becomes `layers`."""
    return re.sub(r"[^a-z0-9]+", "", text.lower())[:80]


def setting_of(heading: str) -> str | None:
    """Return the field that a heading names, or None."""
    return _BY_HEADING.get(compact(re.sub(r"\([^()]*\)", "", heading)))


def heading_pair(heading: str) -> tuple[str, float] | None:
    """Split a heading that names a value of a setting: `Micro batch size: 4`, `mbs=4`, `8 GPUs`."""
    match = _PAIR.match(" ".join(heading.split())[:120])
    if match is None:
        return None
    name, number = (match[1], match[2]) if match[1] else (match[4], match[3])
    return name.strip(" :="), float(number.replace(",", ""))


def quantity_of(heading: str, unit: str = "") -> tuple[str, float] | None:
    """Return the part of a summary that a heading and a unit name: (name, factor to its unit); None if unknown.

    `heading` may also be a caption or a title; `unit` is the unit of the cells.
    """
    if "_" in heading and (metric := quantity_of_metric(heading)) is not None:
        part = _PARTS.get(metric.name)
        return None if part is None else (part, metric.scale)
    text = _normalised(heading)
    for name, pattern in _RATES:
        if pattern.search(text):
            return None if _PER_GPU.search(text) else (name, 1.0)
    normal_unit = unit_of(unit or _unit_of_heading(heading))
    suffix, scale = normal_unit or ("", 1.0)
    if "flop" in text or suffix.startswith("flops"):
        if "%" in text or suffix == "pct" or _ALL_GPUS.search(text):
            return None
        tera = scale / 1e12 if suffix.startswith("flops") else 1.0
        return ("tflops_per_gpu", tera) if _PER_GPU.search(text) or suffix == "flops_per_gpu" else None
    if suffix == "bytes" and unit.lower() == "b" and not _MEMORY.search(text):
        return None
    return _of_unit(text, suffix, scale)


def _of_unit(text: str, suffix: str, scale: float) -> tuple[str, float] | None:
    """Return the quantity of a heading by its unit, unless its words say that something else is measured."""
    if suffix == "s":
        is_of_step = _OF_STEP.search(text) or (scale < 60.0 and not _OTHER_TIME.search(text))
        return ("step_time_s", scale) if is_of_step else None
    if suffix == "bytes" and not _OTHER_SIZE.search(text):
        return "memory_peak_bytes", scale
    if suffix == "pct" and "util" in text and "gpu" in text:
        return "gpu_util_pct", 1.0
    return None


def quantity_in_context(context: str, unit: str) -> tuple[str, float] | None:
    """Return the quantity of a table whose headings do not name it: by the unit, otherwise by the text above it.

    If the text names several rates, the last one counts, because it is closest to the table.
    """
    if unit:
        return quantity_of("", unit)
    text = _normalised(context[-4_000:])
    quantities = [(match.end(), name, 1.0) for name, pattern in _RATES for match in pattern.finditer(text)]
    quantities += [(match.end(), "step_time_s", 1e-3 if match[1] else 1.0) for match in _TIME_PER_STEP.finditer(text)]
    if not quantities:
        return None
    _, name, scale = max(quantities)
    return name, scale


def _normalised(text: str) -> str:
    return " ".join(text.lower().replace("_", " ").split())


def _unit_of_heading(heading: str) -> str:
    match = _UNIT.search(heading)
    return next((part for part in match.groups() if part), "") if match else ""


def column_of(heading: str, cells: Sequence[Cell]) -> Column:
    filled = [cell for cell in cells if cell.kind != "blank"]
    if not filled:
        return Column(heading, "empty")
    kinds = {cell.kind for cell in filled}
    unit = next((cell.unit for cell in filled if cell.kind == "number" and cell.unit), "")
    setting = setting_of(heading)
    if setting and not (unit and unit_of(unit)):
        return Column(heading, "setting", setting)
    if not kinds & {"number", "failure"}:
        return Column(heading, "axis", heading)
    is_named = _names_quantity(heading)
    quantity = quantity_of(heading, unit)
    if is_named or quantity:
        return Column(heading, "metric", *(quantity or ("", 1.0)), is_named)
    is_label = "text" in kinds or compact(heading) in _SIZES
    return Column(heading, "axis", heading) if is_label else Column(heading, "figure")


def _names_quantity(heading: str) -> bool:
    text = _normalised(heading)
    return any(pattern.search(text) for pattern in (_OTHER, _TIME, _MEMORY)) or quantity_of(heading) is not None
