"""Names that other tools give to settings and metrics -> parlab's own. Pure.

Sources of the names: Hugging Face Trainer and Accelerate, Lightning, Megatron-LM, NeMo, DeepSpeed, torchtitan, TRL,
verl, nanoGPT, MosaicML Composer, as their documentation and logs have them. A name in neither table keeps its meaning
open: it is stored and drawn, but nothing is computed from it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from parlab.formats.schema import Launch

from .quantities import to_float, to_int, unit_of

# Field of a Launch -> names of settings, reduced by `plain`; the first name that is present counts.
_SETTINGS: dict[str, tuple[str, ...]] = {
    "micro_batch_size": ("microbatchsize", "perdevicetrainbatchsize", "trainmicrobatchsizepergpu", "perdevicebatchsize",
                         "microbatchsizepergpu", "mbs", "devicetrainmicrobatchsize", "localbatchsize"),
    "global_batch_size": ("globalbatchsize", "trainbatchsize", "globaltrainbatchsize", "effectivebatchsize",
                          "totaltrainbatchsize", "gbs"),
    "gradient_accumulation_steps": ("gradientaccumulationsteps", "accumulategradbatches", "gradaccumsteps",
                                    "accumulationsteps"),
    "sequence_length": ("sequencelength", "seqlength", "seqlen", "maxseqlen", "maxseqlength", "maxlength", "blocksize",
                        "encoderseqlength", "contextlength"),
    "num_layers": ("numlayers", "numhiddenlayers", "nlayers", "nlayer"),
    "hidden_size": ("hiddensize", "dmodel", "nembd", "hiddendim", "embeddim"),
    "num_attention_heads": ("numattentionheads", "nheads", "nhead", "numheads"),
    "world_size": ("worldsize", "numgpus", "ngpus", "gpus", "numdevices", "numprocesses"),
    "data_parallel_size": ("dataparallelsize", "dp", "dpsize", "dataparallelreplicatedegree"),
    "tensor_parallel_size": ("tensormodelparallelsize", "tensorparallelsize", "tensorparalleldegree", "tp", "tpsize",
                             "tensorparallel"),
    "pipeline_parallel_size": ("pipelinemodelparallelsize", "pipelineparallelsize", "pipelineparalleldegree", "pp",
                               "ppsize", "pipelineparallel"),
    "zero_stage": ("zerostage", "zerooptimizationstage"),
}  # fmt: skip
_PRECISIONS = {
    "fp32": "fp32", "32": "fp32", "float32": "fp32", "32true": "fp32", "no": "fp32",
    "fp16": "fp16", "16": "fp16", "float16": "fp16", "16mixed": "fp16", "16true": "fp16", "half": "fp16",
    "bf16": "bf16", "bfloat16": "bf16", "bf16mixed": "bf16", "bf16true": "bf16", "fp8": "fp8",
}  # fmt: skip
_PRECISION_NAMES = ("precision", "mixedprecision", "dtype", "torchdtype", "paramsdtype")


class Quantity(NamedTuple):
    """What a metric is: the name of parlab's series and the factor to its unit."""

    name: str
    scale: float = 1.0


MEANINGS: dict[str, tuple[str, Quantity]] = {
    "loss": ("Loss", Quantity("loss")),
    "step_time_s": ("Step time in s", Quantity("step_time_s")),
    "step_time_ms": ("Step time in ms", Quantity("step_time_s", 1e-3)),
    "samples_per_s": ("Samples/s", Quantity("samples_per_s")),
    "tokens_per_s": ("Tokens/s", Quantity("tokens_per_s")),
    "memory_peak_bytes": ("Peak memory in bytes", Quantity("memory_peak_bytes")),
    "memory_peak_mib": ("Peak memory in MiB", Quantity("memory_peak_bytes", float(2**20))),
    "memory_peak_gib": ("Peak memory in GiB", Quantity("memory_peak_bytes", float(2**30))),
    "memory_bytes": ("Memory in bytes", Quantity("memory_bytes")),
    "memory_mib": ("Memory in MiB", Quantity("memory_bytes", float(2**20))),
    "memory_gib": ("Memory in GiB", Quantity("memory_bytes", float(2**30))),
    "tflops_per_gpu": ("TFLOP/s per GPU", Quantity("tflops_per_gpu")),
    "mfu": ("MFU, 0 to 1", Quantity("mfu")),
    "mfu_pct": ("MFU in per cent", Quantity("mfu", 0.01)),
    "grad_norm": ("Gradient norm", Quantity("grad_norm")),
    "learning_rate": ("Learning rate", Quantity("learning_rate")),
}
"""What a person can choose as the meaning of a metric: key -> title, and quantity with the factor to its unit."""
SETTINGS: tuple[str, ...] = (*_SETTINGS, "precision")
"""What a person can choose as the meaning of a parameter: fields of a Launch."""


# Reduced name without its unit -> series. Words of a path before the last slash are left out where they only say that
# the value is of the training (`train/loss`).
_METRICS: dict[str, Quantity] = {
    "loss": Quantity("loss"), "trainloss": Quantity("loss"), "lmloss": Quantity("loss"),
    "reducedtrainloss": Quantity("loss"), "trainlossstep": Quantity("loss"), "globalavgloss": Quantity("loss"),
    "steptime": Quantity("step_time_s"), "iterationtime": Quantity("step_time_s"), "itertime": Quantity("step_time_s"),
    "timeperstep": Quantity("step_time_s"), "trainsteptiming": Quantity("step_time_s"), "dt": Quantity("step_time_s"),
    "timestep": Quantity("step_time_s"), "timingsstep": Quantity("step_time_s"), "endtoend": Quantity("step_time_s"),
    "elapsedtimeperiteration": Quantity("step_time_s"), "timemetricsendtoend": Quantity("step_time_s"),
    "samplespers": Quantity("samples_per_s"), "samplespersec": Quantity("samples_per_s"),
    "samplespersecond": Quantity("samples_per_s"), "trainsamplespersecond": Quantity("samples_per_s"),
    "throughputsamplespersec": Quantity("samples_per_s"), "sequencespersecond": Quantity("samples_per_s"),
    "tokenspers": Quantity("tokens_per_s"), "tokenspersec": Quantity("tokens_per_s"),
    "tokenspersecond": Quantity("tokens_per_s"), "toksec": Quantity("tokens_per_s"), "tps": Quantity("tokens_per_s"),
    "traintokenspersecond": Quantity("tokens_per_s"), "throughputtokenspersec": Quantity("tokens_per_s"),
    "memorypeak": Quantity("memory_peak_bytes"), "maxmemoryallocated": Quantity("memory_peak_bytes"),
    "peakmemory": Quantity("memory_peak_bytes"), "memorymaxactive": Quantity("memory_active_bytes"),
    "memorymaxallocated": Quantity("memory_peak_bytes"), "memorydevicereserved": Quantity("memory_reserved_bytes"),
    "maxallocated": Quantity("memory_peak_bytes"), "peakmemoryallocated": Quantity("memory_peak_bytes"),
    "memoryallocated": Quantity("memory_bytes"), "memory": Quantity("memory_bytes"),
    "gradnorm": Quantity("grad_norm"), "globalgradnorm": Quantity("grad_norm"),
    "learningrate": Quantity("learning_rate"), "lr": Quantity("learning_rate"),
    "tflopspergpu": Quantity("tflops_per_gpu"), "tflops": Quantity("tflops_per_gpu"),
    "mfu": Quantity("mfu"), "perfmfuactor": Quantity("mfu"), "bf16mfu": Quantity("mfu", 0.01),
    "tokenspersecondpergpu": Quantity("tokens_per_s_per_gpu"), "tokenspersecpergpu": Quantity("tokens_per_s_per_gpu"),
    "throughputtps": Quantity("tokens_per_s_per_gpu"), "memorymaxactivegib": Quantity("memory_active_bytes", 2.0**30),
    "memorymaxreservedgib": Quantity("memory_reserved_bytes", 2.0**30),
    "numinputtokensseen": Quantity("tokens_seen"), "trainnuminputtokensseen": Quantity("tokens_seen"),
    "tokensseen": Quantity("tokens_seen"), "ntokensseen": Quantity("tokens_seen"),
    "numtokens": Quantity("tokens_seen"), "totaltokens": Quantity("tokens_seen"),
    "consumedtokens": Quantity("tokens_seen"),
    "tgs": Quantity("tokens_per_s_per_gpu"), "tokenstrainpersecpergpu": Quantity("tokens_per_s_per_gpu"),
    "stepms": Quantity("step_time_s", 1e-3), "timingsteptotal": Quantity("step_time_s"),
    "perfactortraintokpers": Quantity("actor_train_tokens_per_s"),
    "perfactortraintflops": Quantity("tflops_per_gpu"), "perfthroughput": Quantity("tokens_per_s_per_gpu"),
    "throughputdevicetokenspersec": Quantity("tokens_per_s_per_gpu"), "wps": Quantity("tokens_per_s"),
    "devicetokenspersec": Quantity("tokens_per_s_per_gpu"), "throughputdevicetps": Quantity("tokens_per_s_per_gpu"),
    "throughputdevicetokenspersecond": Quantity("tokens_per_s_per_gpu"), "throughputdevicemfu": Quantity("mfu"),
    "tokenspergpupersecond": Quantity("tokens_per_s_per_gpu"), "tokensgpus": Quantity("tokens_per_s_per_gpu"),
    "tokenssgpu": Quantity("tokens_per_s_per_gpu"), "tokenspersdevice": Quantity("tokens_per_s_per_gpu"),
    "tokenssdevice": Quantity("tokens_per_s_per_gpu"), "tokenspergpupersecondtgs": Quantity("tokens_per_s_per_gpu"),
    "traintotalips": Quantity("samples_per_s"), "totalips": Quantity("samples_per_s"),
    "seqspersecond": Quantity("samples_per_s"), "sequencespersec": Quantity("samples_per_s"),
    "imagespersec": Quantity("samples_per_s"), "imagespersecond": Quantity("samples_per_s"),
    "examplespersec": Quantity("samples_per_s"), "examplespersecond": Quantity("samples_per_s"),
    "trainingsequencespersecond": Quantity("samples_per_s"), "imgpersec": Quantity("samples_per_s"),
    "stepspersec": Quantity("steps_per_s"), "trainstepspersecond": Quantity("steps_per_s"),
    "totalsteptime": Quantity("step_time_s"), "currentsteptime": Quantity("step_time_s"),
    "msperstep": Quantity("step_time_s", 1e-3), "secperstep": Quantity("step_time_s"),
    "secondsperstep": Quantity("step_time_s"),
    "traintimeperstep": Quantity("step_time_s"),
    "perstepms": Quantity("step_time_s", 1e-3),
    "secondsperiter": Quantity("step_time_s"), "secperiter": Quantity("step_time_s"),
    "tokenssec": Quantity("tokens_per_s"),
    "samplessec": Quantity("samples_per_s"), "batchespersec": Quantity("steps_per_s"),
    "stepspersecond": Quantity("steps_per_s"), "itsec": Quantity("steps_per_s"),
    "trainspeediters": Quantity("steps_per_s"),
    "peakmem": Quantity("memory_peak_bytes"), "memorymaxmemallocated": Quantity("memory_peak_bytes"),
    "memorymaxmemactive": Quantity("memory_active_bytes"), "peakmemoryactive": Quantity("memory_active_bytes"),
    "peakmemoryalloc": Quantity("memory_peak_bytes"), "peakmemoryreserved": Quantity("memory_reserved_bytes"),
    "memorydevicememreserved": Quantity("memory_reserved_bytes"),
    "maxmemoryreserved": Quantity("memory_reserved_bytes"),
    "reservedmemory": Quantity("memory_reserved_bytes"), "allocatedmemory": Quantity("memory_bytes"),
    "maxcudamemoryusage": Quantity("memory_peak_bytes"),
    "losstrain": Quantity("loss"), "trainingloss": Quantity("loss"), "steploss": Quantity("loss"),
    "traincrossentropyloss": Quantity("loss"), "gnorm": Quantity("grad_norm"),
    "norm": Quantity("grad_norm"), "losstraintotal": Quantity("loss"),
    "achievedteraflopspersec": Quantity("tflops_per_gpu"), "throughputdeviceflopspersec": Quantity("flops_per_gpu"),
}  # fmt: skip
# Names that mean nothing without a unit.
_WITH_UNIT: dict[str, Quantity] = {
    "timeperiter": Quantity("step_time_s"), "timethisiter": Quantity("step_time_s"),
    "timeperiteration": Quantity("step_time_s"), "perstepduration": Quantity("step_time_s"),
    "persteptime": Quantity("step_time_s"), "stepduration": Quantity("step_time_s"),
    "batchtime": Quantity("step_time_s"), "vram": Quantity("memory_bytes"), "gpumem": Quantity("memory_bytes"),
    "cudamem": Quantity("memory_bytes"), "gpumemory": Quantity("memory_bytes"),
    "gpumemoryused": Quantity("memory_bytes"), "memused": Quantity("memory_bytes"),
    "memoryused": Quantity("memory_bytes"), "mem": Quantity("memory_bytes"), "cudamemory": Quantity("memory_bytes"),
    "memoryusage": Quantity("memory_bytes"), "maxmem": Quantity("memory_peak_bytes"),
    "maxmemory": Quantity("memory_peak_bytes"), "peakvram": Quantity("memory_peak_bytes"),
    "maxvram": Quantity("memory_peak_bytes"), "peakgpumemory": Quantity("memory_peak_bytes"),
    "maxgpumemory": Quantity("memory_peak_bytes"), "peakgpumem": Quantity("memory_peak_bytes"),
    "peakcudamemory": Quantity("memory_peak_bytes"), "peakreservedmemory": Quantity("memory_reserved_bytes"),
    "maxcudamemoryallocated": Quantity("memory_peak_bytes"),
    "maxcudamemoryreserved": Quantity("memory_reserved_bytes"),
    "peakactivecudamemory": Quantity("memory_active_bytes"), "mempeak": Quantity("memory_peak_bytes"),
    "vrampeak": Quantity("memory_peak_bytes"), "memmax": Quantity("memory_peak_bytes"),
    "devicememory": Quantity("memory_bytes"), "peakdevicememory": Quantity("memory_peak_bytes"),
}  # fmt: skip
_UNIT_SUFFIX = re.compile(r"^(.+?)[\s_./(\[-]+(ns|us|ms|s|sec|seconds|gib|gb|mib|mb|kib|kb|bytes|b|pct|%)[)\]]?$", re.I)
_TRAINING = frozenset(
    {"train", "training", "perf", "throughput", "timing_s", "timing", "time_metrics", "loss_metrics", "system",
     "metrics"}
)  # fmt: skip
# Words before a name that make it no other quantity, and the words after it that make it one per GPU.
_PLAIN_WORDS = re.compile(
    r"^(?:interval|metrics|data/train|data/perf|gpu|cuda|system|per[_ ]rank)[_ ./]+(?=[a-z])", re.I
)
_EACH = re.compile(r"^(?P<name>.+?)[_ ./]+per[_ ](?:gpu|device|npu|chip|core)$", re.I)


def plain(name: str) -> str:
    """Reduce a name to lower-case letters and digits: `train/Tokens_per-sec` -> traintokenspersec."""
    return re.sub(r"[^a-z0-9]+", "", name[:250].lower())


def quantity_of_metric(name: str) -> Quantity | None:
    """Return what a metric means, from its name and the unit in it; None where the name is not known."""
    name = _PLAIN_WORDS.sub("", name[:250])
    if (each := _EACH.match(name)) is not None:
        quantity = quantity_of_metric(each["name"])
        if quantity is not None and quantity.name == "tokens_per_s":
            return quantity._replace(name="tokens_per_s_per_gpu")
        if quantity is not None and quantity.name == "tflops_per_gpu":
            return quantity
    if name.isascii() and (whole := _METRICS.get(plain(name))) is not None:
        in_per_cent = whole.name == "mfu" and name.rstrip(")] ").endswith("%")
        return whole._replace(scale=0.01) if in_per_cent else whole
    path, _, last = name.rpartition("/")
    if path and not set(path.lower().split("/")) & _TRAINING:
        return None  # `eval/loss` is another quantity
    for candidate in (name, last):
        metric = _METRICS.get(plain(candidate))
        if metric is not None:
            return metric
        match = _UNIT_SUFFIX.match(candidate)
        if match is None:
            continue
        base = plain(match[1])
        metric, unit = (
            _METRICS.get(base) or _WITH_UNIT.get(base),
            unit_of(match[2].lower() if match[2] != "b" else "bytes"),
        )
        if metric is not None and unit is not None and metric.name.endswith(f"_{unit[0]}"):
            return Quantity(metric.name, unit[1])
    # A downloaded scalar of TensorBoard has no slashes.
    rest = name.lower().removeprefix("throughput_")
    return quantity_of_metric(rest) if len(rest) < len(name) else None


def setting_of(name: str) -> str:
    """Return the field of a Launch that a parameter of this name fills by itself; empty for none."""
    own_names = {plain(name), plain(re.split(r"[/.]", name)[-1])}
    if own_names & {*_PRECISION_NAMES, "bf16", "fp16"}:
        return "precision"
    return next((field for field, names in _SETTINGS.items() if own_names & set(names)), "")


def launch_of(
    settings: Mapping[str, Any], meanings: Mapping[str, str] | None = None, *, world_size: int | None = None
) -> Launch:
    """Return the settings of a run as a Launch: those with a known meaning under normal names, all as arguments.

    `world_size` is that of the launcher, for settings that do not state it.

    Values may be numbers or their texts; a value of another kind leaves its normal field empty. `meanings` are the
    fields that a person has chosen for names, empty for none; they take precedence over the tables here.
    """
    meanings = meanings or {}
    reduced: dict[str, Any] = {}
    for name, value in settings.items():
        if name in meanings:
            continue
        reduced.setdefault(plain(name), value)
        reduced.setdefault(plain(re.split(r"[/.]", name)[-1]), value)
    fields: dict[str, Any] = {}
    for field, names in _SETTINGS.items():
        for name in names:
            number = _whole(reduced.get(name))
            if number is not None:
                fields[field] = number
                break
    chosen = {field: settings[name] for name, field in meanings.items() if field and name in settings}
    fields |= {field: number for field, value in chosen.items() if (number := _whole(value)) is not None}
    precision = _precision({**reduced, "precision": chosen["precision"]} if "precision" in chosen else reduced)
    if precision is not None:
        fields["precision"] = precision
    if world_size is not None:
        fields.setdefault("world_size", world_size)
        # `batch_size` of a script on many ranks is that of each rank's data loader.
        if "global_batch_size" not in fields and (number := _whole(reduced.get("batchsize"))):
            fields.setdefault("micro_batch_size", number)
    derived = _derive(fields)
    arguments = {str(name): _typed(value) for name, value in settings.items()}
    return Launch(**fields, derived=derived, arguments=arguments)


def _derive(fields: dict[str, Any]) -> dict[str, str]:
    """Fill the global batch where the micro batch, accumulation and ranks state it; returns how."""
    micro, accumulation = fields.get("micro_batch_size"), fields.get("gradient_accumulation_steps", 1)
    ranks = fields.get("data_parallel_size")
    if ranks is None and "world_size" in fields:
        ranks = fields["world_size"] // max(
            1, fields.get("tensor_parallel_size", 1) * fields.get("pipeline_parallel_size", 1)
        )
    if "global_batch_size" in fields or not micro or not ranks:
        return {}
    fields["global_batch_size"] = micro * accumulation * ranks
    return {"global_batch_size": f"micro batch {micro} x accumulation {accumulation} x data parallel {ranks}"}


def _precision(reduced: Mapping[str, Any]) -> str | None:
    for name in _PRECISION_NAMES:
        value = _PRECISIONS.get(plain(str(reduced.get(name, "")).removeprefix("torch.")))
        if value is not None:
            return value
    for name in ("bf16", "fp16"):
        if str(reduced.get(name)).lower() in ("true", "1"):
            return name
    return None


def _whole(value: Any) -> int | None:
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int):
        number: int | None = value
    elif isinstance(value, float):
        number = int(value) if value.is_integer() else None
    else:
        number = to_int(str(value)[:40])
    return number if number is not None and 0 <= number < 2**53 else None


def _typed(value: Any) -> Any:
    """Read a text as the number or truth value that it writes."""
    if not isinstance(value, str) or len(value) > 40:
        return value
    if value in ("True", "true", "False", "false"):
        return value.lower() == "true"
    number = to_int(value)
    return number if number is not None else value if (real := to_float(value)) is None else real
