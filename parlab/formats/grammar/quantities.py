"""The one table of quantities: what the names mean that trainers print, as parlab stores and shows it. Pure.

Sources of the names: Hugging Face Trainer and Accelerate, Lightning, Megatron-LM, NeMo, DeepSpeed, torchtitan, TRL,
verl, nanoGPT, MosaicML Composer and the trainers in `logs/dialects.py`, as their documentation and code have them. A
name that is not in the table keeps its meaning open: it is stored and drawn under its own name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from parlab.formats.grammar.records import Field
from parlab.formats.grammar.units import unit_of
from parlab.formats.schema import Kind

Per = Literal["", "rank", "GPU", "node", "all"]


class Quantity(NamedTuple):
    """One quantity: the name and unit under which its values are stored, and the names that trainers give to it.

    An alias is `names [unit factor]`: names without signs and capitals, separated by spaces. A unit states what the
    names, or the trainer's code, say; `?` stands for names that mean the quantity only with a printed unit. The aliases
    of one trainer are its own keys, separated by semicolons: `torchtitan: tps; wps [tokens/s]`. A word in the place of
    the factor is the kind of what these keys state, where it is another than that of the quantity.
    """

    name: str
    unit: str = ""
    kind: Kind = "printed"
    per: Per = ""
    aliases: tuple[str, ...] = ()
    title: str = ""
    """What a person reads who chooses the quantity; empty if it is not offered."""
    series: str = ""
    """The name in series and summaries, if it differs from the name in documents."""
    series_factor: float = 1.0
    """Unit of the series, in units of this quantity."""

    @property
    def stored(self) -> str:
        """Return the name in series and summaries."""
        return self.series or self.name


QUANTITIES: tuple[Quantity, ...] = (
    Quantity("loss", aliases=(
        "loss trainloss lmloss reducedtrainloss trainlossstep globalavgloss losstrain trainingloss steploss",
        "traincrossentropyloss trainceloss losstraintotal batchavgloss",
        "xtuner: reduced_llm_loss", "litgpt: loss train", "neuronx: step_loss", "marian: Cost",
        "detectron2: total_loss", "opennmt: xent",
        "events: global_avg_loss", "hf: Training Loss"), title="Loss"),
    Quantity("reduced_train_loss", aliases=("nemo: reduced_train_loss",)),
    Quantity("lm_loss", aliases=("events: lm loss", "nanotron: lm_loss")),
    Quantity("step_time_s", "s", per="all", aliases=(
        "steptime iterationtime itertime timeperstep trainsteptiming dt timestep timingsstep endtoend",
        "elapsedtimeperiteration timemetricsendtoend timingsteptotal totalsteptime currentsteptime secperstep",
        "secondsperstep traintimeperstep secondsperiter secperiter",
        "stepms msperstep perstepms [ms]",
        "timeperiter timethisiter timeperiteration perstepduration persteptime stepduration batchtime stepdt ?",
        "batchcost steplatency trainstepruntime ?",
        "detectron2: last_time [s]", "openmmlab: time [s]", "torchvision: time [s]", "imagenet: Time [s]",
        "timm: Time [s]", "open-clip: Batch (t) [s]", "xtuner: time [s]", "areal: timeperf/e2e [s]",
        "tinker: time/total [s]", "prime-rl: Time [s]", "espnet: train_time [s]", "lingua: iter [s]",
        "paddle: avg_batch_cost; batch_cost [s]",
        "nemo: train_step_timing in s; train_step_timing [s]", "maxtext: seconds [s]",
        "nanotron: elapsed_time_per_iteration_ms; time_per_iteration_ms [ms]",
        "events: iteration-time; train_step_timing in s; end_to_end(s) [s]", "hf: step_time; step_time_sec [s]",
        "pairs: current step time [s]",  # fms-fsdp
        "pipeline-runner: whole iteration; iteration [s]",
        "deepspeed: iter latency; iter time (s); E2E latency [s]"), title="Step time"),
    Quantity("average_step_time_s", "s", "average", "all", (
        "stepavg trainspeedsit ?", "trainspeedsit [s]",
        "detectron2: time [s]",  # since the start
        "modded-nanogpt: step_avg [ms]", "hf: avg_step_time_sec [s]", "pairs: overall step time [s]")),
    Quantity("data_time_s", "s", "part", "all", (
        "readercost ?",
        "espnet: iter_time [s]", "lingua: data [s]", "paddle: avg_reader_cost; reader_cost [s]",
        "detectron2: data_time [s]", "openmmlab: data_time [s]", "torchvision: data [s]", "imagenet: Data [s]",
        "timm: Data [s]", "open-clip: Data (t) [s]")),
    Quantity("backward_s", "s", "part", "all", ("nemo: train_backward_timing in s [s]",)),
    Quantity("validation_step_s", "s", "part", "all", ("nemo: validation_step_timing in s [s]",)),
    Quantity("last_data_time_s", "s", "part", aliases=("detectron2: last_data_time [s]",)),
    Quantity("samples_per_s", "samples/s", per="all", aliases=(
        "samplespers samplespersec samplespersecond trainsamplespersecond throughputsamplespersec sequencespersecond",
        "traintotalips totalips seqspersecond sequencespersec imagespersec imagespersecond examplespersec",
        "examplespersecond trainingsequencespersecond imgpersec samplessec trainstepsamplespersecond",
        "colossalai: avg_throughput [samples/s]", "composer: throughput/samples_per_sec [samples/s]",
        "neuronx: throughput [seq/s]", "megatron: samples per second [samples/s]", "deepspeed: samples/second",
        # The engine's timer leaves out what happens between its steps.
        "deepspeed: CurrSamplesPerSec; CurSamplesPerSec [samples/s part]",
        "events: train_samples_per_second [samples/s]", "hf: train_samples_per_second"), title="Samples/s"),
    Quantity("running_avg_samples_per_s", "samples/s", "average", "all", (
        "deepspeed: RunningAvgSamplesPerSec; SamplesPerSec; AvgSamplesPerSec",)),
    Quantity("samples_per_s_per_gpu", "samples/s", per="GPU", aliases=("torchvision: img/s [img/s]",)),
    Quantity("tokens_per_s", "tokens/s", per="all", aliases=(
        "tokenspers tokenspersec tokenspersecond toksec tps traintokenspersecond throughputtokenspersec wps tokenssec",
        "composer: throughput/tokens_per_sec [tokens/s]", "paddle: ips_total [tokens/s]",
        "megatron: tokens per second [tokens/s]", "nanotron: tokens_per_sec [tokens/s]",
        "hf: train_tokens_per_second; throughput; step_tokens_per_second"), title="Tokens/s"),
    Quantity("average_tokens_per_s", "tokens/s", "average", "all", ("hf: avg_tokens_per_second",)),
    Quantity("tokens_per_s_per_gpu", "tokens/s", per="GPU", aliases=(
        "tokenspersecondpergpu tokenspersecpergpu tgs tokenstrainpersecpergpu perfthroughput",
        "throughputdevicetokenspersec devicetokenspersec throughputdevicetps throughputdevicetokenspersecond",
        "tokenspergpupersecond tokensgpus tokenssgpu tokenspersdevice tokenssdevice tokenspergpupersecondtgs",
        "throughputtps",
        "lingua: wps [words/s]", "paddle: ips [tokens/s]", "maxtext: Tokens/s/device [tokens/s]",
        "megatron: tokens per GPU (tokens/s/GPU); tokens/s/GPU; tokens per gpu per second (tgs) [tokens/s]",
        "megatron: tokens per sec per GPU; tokens-per-second-per-gpu [tokens/s]",
        "nanotron: tokens_per_sec_per_gpu [tokens/s]", "nemo: tokens_per_sec_per_gpu [tokens/s]",
        "torchtitan: tps; wps [tokens/s]", "events: throughput(tps) [tokens/s]"), title="Tokens/s per GPU"),
    Quantity("average_tokens_per_s_per_gpu", "tokens/s", "average", "GPU", (
        "olmo: throughput/device/TPS (actual avg) [tokens/s]",)),
    Quantity("actor_train_tokens_per_s", "tokens/s", "part", aliases=("perfactortraintokpers",)),
    Quantity("source_tokens_per_s", "tokens/s", aliases=("opennmt: source rate [tok/s]",)),
    Quantity("target_tokens_per_s", "tokens/s", aliases=("opennmt: target rate [tok/s]",)),
    Quantity("steps_per_s", "steps/s", per="all", aliases=(
        "stepspersec trainstepspersecond batchespersec stepspersecond itsec",
        "fairseq: ups [updates/s]", "composer: throughput/batches_per_sec [batches/s]",
        "olmo: throughput/device/BPS; throughput/device/batches_per_second [batches/s]",
        "events: train_steps_per_second [steps/s]", "hf: train_steps_per_second"), title="Steps/s"),
    Quantity("average_steps_per_s", "steps/s", "average", "all", (
        "trainspeediters",  # ms-swift
        "olmo: throughput/device/BPS (actual avg) [batches/s]",)),
    Quantity("flops_per_gpu", "FLOP/s", per="GPU", title="TFLOP/s per GPU", series="tflops_per_gpu",
             series_factor=1e12, aliases=(
        "tflopspergpu tflops perfactortraintflops achievedteraflopspersec [TFLOP/s 1e12]",
        "throughputdeviceflopspersec [FLOP/s]",
        "lingua: flops [FLOP/s]", "paddle: interval_hardware_tflops_per_device [TFLOP/s 1e12]",
        "mindformers: train_throughput_per_npu [T 1e12]", "maxtext: TFLOP/s/device [TFLOP/s/device 1e12]",
        "megatron: throughput per GPU (TFLOP/s/GPU) [TFLOP/s/GPU 1e12]", "megatron: TFLOPs; tflops [TFLOP/s 1e12]",
        "nanotron: model_tflops_per_gpu [TFLOP/s 1e12]",
        "nemo: TFLOPS_per_GPU; tflops_per_sec_per_gpu [TFLOP/s 1e12]", "torchtitan: tflops [TFLOP/s 1e12]",
        "olmo: throughput/device/flopsPS [FLOP/s]",
        "events: tflops [TFLOP/s 1e12]", "deepspeed: FLOPS per GPU")),
    Quantity("average_flops_per_gpu", "FLOP/s", "average", "GPU", (
        "olmo: throughput/device/flopsPS (actual avg) [FLOP/s]",)),
    Quantity("hardware_flops_per_gpu", "FLOP/s", per="GPU", aliases=(
        "nanotron: hardware_tflops_per_gpu [TFLOP/s 1e12]",)),
    Quantity("megatron_flops_per_gpu", "FLOP/s", per="GPU", aliases=(
        "colossalai: TFLOPS per GPU by Megatron [TFLOP/s 1e12]",)),
    Quantity("mfu", "", per="GPU", title="MFU", aliases=(
        "mfu perfmfuactor throughputdevicemfu modelflopsutilization", "bf16mfu [% 0.01]",
        "nanogpt: bf16_mfu [% 0.01]", "olmo: throughput/device/MFU [% 0.01]")),
    Quantity("average_mfu", "", "average", "GPU", ("olmo: throughput/device/MFU (actual avg) [% 0.01]",)),
    Quantity("mfu_pct", "%", per="GPU", aliases=("events: mfu(%) [%]", "torchtitan: mfu [%]")),
    Quantity("max_allocated_bytes", "bytes", per="rank", title="Peak memory", series="memory_peak_bytes", aliases=(
        "memorypeak maxmemoryallocated peakmemory memorymaxallocated maxallocated peakmemoryallocated peakmem",
        "deepspeed: MaxMemAllocated",
        "memorymaxmemallocated peakmemoryalloc maxcudamemoryusage maxmemallocated",
        "memoryusagewhiletraining ?",  # axolotl
        "maxmem maxmemory peakvram maxvram peakgpumemory maxgpumemory peakgpumem peakcudamemory maxcudamemoryallocated"
        " mempeak vrampeak memmax peakdevicememory ?",
        "torchtune: peak_memory_alloc [GiB]", "composer: memory/peak_allocated_mem [GB 1e9]",
        "xtuner: max_memory [GB]", "prime-rl: Peak Mem. [GiB]", "automodel: mem [GiB]",
        "paddle: max_memory_allocated [GiB]", "detectron2: max_mem [M 1048576]", "openmmlab: memory [MB]",
        "torchvision: max mem [MB]", "nanotron: cuda_max_memory_allocated; Peak allocated [B 1]",
        "nemo: peak_memory_usage; max_memory_allocated [B 1]")),
    Quantity("max_active_bytes", "bytes", per="rank", series="memory_active_bytes", aliases=(
        "memorymaxactive memorymaxmemactive peakmemoryactive", "memorymaxactivegib [GiB]", "peakactivecudamemory ?",
        "torchtune: peak_memory_active [GiB]", "composer: memory/peak_active_mem [GB 1e9]",
        "olmo: system/GPU active mem (GiB); gpu_memory/GPU active mem (GiB) [GiB]",
        "events: max_active(GiB) [GiB]")),
    Quantity("max_reserved_bytes", "bytes", per="rank", title="Reserved memory, peak", series="memory_reserved_bytes",
             aliases=(
        "memorydevicereserved peakmemoryreserved memorydevicememreserved maxmemoryreserved reservedmemory",
        "maxmemreserved",
        "peakreservedmemory maxcudamemoryreserved ?", "memorymaxreservedgib [GiB]",
        "torchtune: peak_memory_reserved [GiB]", "composer: memory/peak_reserved_mem [GB 1e9]",
        "xtuner: reserved_memory [GB]",
        "olmo: system/GPU reserved mem (GiB); gpu_memory/GPU reserved mem (GiB) [GiB]",
        "paddle: max_memory_reserved [GiB]", "nanotron: cuda_max_memory_reserved; Peak reserved [B 1]",
        "nemo: max_memory_reserved [B 1]", "events: max_reserved(GiB) [GiB]")),
    Quantity("allocated_bytes", "bytes", per="rank", title="Memory", series="memory_bytes", aliases=(
        "composer: memory/allocated_mem [GB 1e9]", "deepspeed: MemAllocated", "paddle: current_memory_allocated [GiB]",
        "nanotron: cuda_memory_allocated; Memory usage [B 1]", "nemo: memory_allocated [B 1]",
        "maxtext: Using (GB) [GB]")),
    Quantity("memory_bytes", "bytes", per="rank", aliases=(
        "memoryallocated memory allocatedmemory",
        "vram gpumem cudamem gpumemory gpumemoryused memused memoryused mem cudamemory memoryusage devicememory"
        " memusage ?",
        "torchtitan: memory [GiB]")),
    Quantity("active_bytes", "bytes", per="rank", aliases=("composer: memory/active_mem [GB 1e9]",)),
    Quantity("inactive_bytes", "bytes", per="rank", aliases=("composer: memory/inactive_mem [GB 1e9]",)),
    Quantity("reserved_bytes", "bytes", per="rank", aliases=(
        "composer: memory/reserved_mem [GB 1e9]", "paddle: current_memory_reserved [GiB]")),
    Quantity("memory_peak_bytes", "bytes", per="rank", aliases=("hf: step_peak_memory_allocated_MB [MB]",)),
    Quantity("memory_reserved_bytes", "bytes", per="rank", aliases=("hf: step_peak_memory_reserved_MB [MB]",)),
    Quantity("total_memory_peak_bytes", "bytes", per="rank", aliases=("hf: total_peak_memory_allocated_MB [MB]",)),
    Quantity("total_memory_reserved_bytes", "bytes", per="rank", aliases=("hf: total_peak_memory_reserved_MB [MB]",)),
    Quantity("free_bytes", "bytes", per="rank", aliases=("fairseq: gb_free [GB]",)),
    Quantity("disk_total_bytes", "bytes", per="node", aliases=("nanotron: hd_total_memory_tb [B 1]",)),
    Quantity("disk_used_bytes", "bytes", per="node", aliases=("nanotron: hd_used_memory_tb [B 1]",)),
    Quantity("disk_free_bytes", "bytes", per="node", aliases=("nanotron: hd_free_memory_tb [B 1]",)),
    Quantity("grad_norm", aliases=("gradnorm globalgradnorm gnorm norm gradientnorm totalgradnorm",
                                   "olmo: optim/total_grad_norm", "lingua: grad", "verl: actor/grad_norm",
                                   "events: grad-norm"),
             title="Gradient norm"),
    Quantity("learning_rate", aliases=(
        "learningrate lr currentlearningrate curlr",
        "nanotron: lr", "nemo: lr", "torchtitan: lr", "events: learning-rate; lr",
        "olmo: optim/LR (group 0)"), title="Learning rate"),
    Quantity("global_batch_size", "", per="all", aliases=("events: batch-size",), title="Global batch size"),
    Quantity("consumed_samples", "", "cumulative", "all", title="Consumed samples"),
    Quantity("tokens_seen", "", "cumulative", "all", (
        "numconsumedtokens numinputtokensseen trainnuminputtokensseen tokensseen ntokensseen numtokens totaltokens",
        "consumedtokens")),
    Quantity("tokens", "", per="all", aliases=("maxtext: total_weights",)),
    Quantity("skipped_iterations", "", aliases=("megatron: number of skipped iterations",)),
    Quantity("nan_iterations", "", aliases=("megatron: number of nan iterations",)),
    Quantity("energy_per_iteration_joules", "J", per="GPU", aliases=("megatron: energy per GPU (J/iter/GPU) [J 1]",)),
    Quantity("power_watts", "W", per="GPU", aliases=("megatron: power per GPU (W/GPU) [W 1]",)),
    Quantity("elapsed_s", "s", "cumulative", "all", ("composer: time/train [h]",), title="Time since the start"),
    Quantity("elapsed_validation_s", "s", "cumulative", "all", ("composer: time/val [h]",)),
    Quantity("elapsed_total_s", "s", "cumulative", "all", ("composer: time/total [h]",)),
    Quantity("elapsed_since_last_s", "s", per="all", aliases=(
        "elapsedsincelast ?",
        "paddle: interval_runtime [s]", "marian: Time [s]")),
    Quantity("train_time_s", "s", "cumulative", "all", ("modded-nanogpt: train_time [ms]",)),
    Quantity("measured_duration_s", "s", "cumulative", "rank", ("colossalai: avg_duration [s]",)),
    Quantity("train_wall_s", "s", "cumulative", "all", ("fairseq: train_wall [s]",)),
    Quantity("wall_s", "s", "cumulative", "all", ("fairseq: wall [s]",)),
    Quantity("train_runtime_s", "s", "cumulative", "all", ("events: train_runtime [s]", "hf: train_runtime")),
    Quantity("remaining_s", "s", aliases=("hf: time_to_completion_sec",)),
    Quantity("total_time_s", "s", aliases=("hf: estimated_total_time_sec",)),
    Quantity("floating_point_operations", "FLOP", "cumulative", "all", ("olmo: throughput/total flops [FLOP 1]",)),
)  # fmt: skip


class Known(NamedTuple):
    """What a name means: its quantity, the unit that the name states, and the factor to the quantity's unit."""

    quantity: Quantity
    unit: str = ""
    scale: float = 1.0
    needs_unit: bool = False
    kind: Kind = "printed"

    def field(self, key: str) -> Field:
        """Return the field of a cell with this name."""
        kind = self.quantity.kind if self.kind == "printed" else self.kind
        return Field(self.quantity.name, key, self.unit, self.scale, kind)


_ALIAS = re.compile(
    r"(?:(?P<trainer>[a-z][\w-]*): )?(?P<names>.+?)(?: \[(?P<unit>[^\] ]+) ?(?P<factor>[^\]]+)?\]| (?P<needs>\?))?"
)


def _aliases() -> Iterator[tuple[str, str, Known]]:
    """Yield trainer, name and meaning of each alias; names of all trainers have none."""
    for quantity in QUANTITIES:
        for alias in quantity.aliases:
            match = _ALIAS.fullmatch(alias)
            assert match is not None, alias
            trainer, names, unit, factor, needs = match.groups()
            kind: Any = factor if factor and factor.isalpha() else "printed"
            scale = float(factor) if factor and kind == "printed" else _factor(unit or "")
            known = Known(quantity, unit or "", scale, needs is not None, kind)
            for name in names.split("; ") if trainer else names.split():
                yield trainer or "", name.strip(), known


def _factor(unit: str) -> float:
    stated = unit_of(unit)
    return stated[1] if stated is not None and unit != "%" else 1.0


BY_NAME: dict[str, Quantity] = {quantity.name: quantity for quantity in QUANTITIES}
_OF_TRAINERS: dict[str, dict[str, Known]] = {}
for _trainer, _name, _known in _aliases():
    _OF_TRAINERS.setdefault(_trainer, {}).setdefault(_name, _known)
_OF_ALL = _OF_TRAINERS[""]


def known_to(trainer: str) -> Mapping[str, Known]:
    """Return the meanings of the keys of one trainer, as it prints them."""
    return _OF_TRAINERS.get(trainer, {})


def plain(name: str) -> str:
    """Reduce a name to lower-case letters and digits: `train/Tokens_per-sec` -> traintokenspersec."""
    return re.sub(r"[^a-z0-9]+", "", name[:250].lower())


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


@lru_cache(maxsize=2**17)  # those of a run with the most metrics
def known_name(name: str) -> Known | None:
    """Return what a name means, from the name and the unit in it; None where the table does not have it."""
    name = _PLAIN_WORDS.sub("", name[:250])
    if (each := _EACH.match(name)) is not None:
        known = known_name(each["name"])
        if known is not None and known.quantity.name == "tokens_per_s":
            return known._replace(quantity=BY_NAME["tokens_per_s_per_gpu"])
        if known is not None and known.quantity.name == "flops_per_gpu":
            return known
    whole = _without_unit(name)
    if whole is not None and name.isascii():
        return whole
    path, _, last = name.rpartition("/")
    if path and not set(path.lower().split("/")) & _TRAINING:
        return None  # `eval/loss` is another quantity
    if (known := whole or _with_unit(name)) is not None:
        return known
    if path and (known := _without_unit(last) or _with_unit(last)) is not None:
        return known
    # A downloaded scalar of TensorBoard has no slashes.
    rest = name.lower().removeprefix("throughput_")
    return known_name(rest) if len(rest) < len(name) else None


def _without_unit(name: str) -> Known | None:
    known = _OF_ALL.get(plain(name))
    if known is None or known.needs_unit:
        return None
    if not name.rstrip(")] ").endswith("%"):
        return known
    if known.quantity.unit not in ("", "%"):
        return None  # `memory (%)` has no bytes
    return known._replace(scale=0.01) if known.quantity.name == "mfu" else known


def _with_unit(name: str) -> Known | None:
    """Return the meaning of a name that ends with its unit: `step time (ms)`, `gpu_mem_mb`."""
    match = _UNIT_SUFFIX.match(name)
    known = _OF_ALL.get(plain(match[1])) if match is not None else None
    unit = unit_of(match[2].lower() if match[2] != "b" else "bytes") if match is not None else None
    if known is None or unit is None or known.quantity.unit != unit[0]:
        return None
    return Known(known.quantity, "", unit[1])


class Meaning(NamedTuple):
    """The name of a series, and the factor to its unit."""

    name: str
    scale: float = 1.0


def quantity_of_metric(name: str) -> Meaning | None:
    """Return what a metric means, from its name and the unit in it; None where the name is not known."""
    known = known_name(name)
    if known is None:
        return None
    return Meaning(known.quantity.stored, known.scale / known.quantity.series_factor)


class Choice(NamedTuple):
    """A meaning that a person can give to a metric."""

    title: str
    meaning: Meaning


_CHOSEN = ("loss", "step_time_s", "samples_per_s", "tokens_per_s", "max_allocated_bytes", "allocated_bytes",
           "flops_per_gpu", "mfu", "grad_norm", "learning_rate")  # fmt: skip
_CHOSEN_UNITS: dict[str, tuple[tuple[str, str, float], ...]] = {
    "s": (("_s", " in s", 1.0), ("_ms", " in ms", 1e-3)),
    "bytes": (("_bytes", " in bytes", 1.0), ("_mib", " in MiB", 2.0**20), ("_gib", " in GiB", 2.0**30)),
    "mfu": (("", ", 0 to 1", 1.0), ("_pct", " in per cent", 0.01)),
}


def _choices() -> Iterator[tuple[str, Choice]]:
    for quantity in (BY_NAME[name] for name in _CHOSEN):
        units = _CHOSEN_UNITS.get(quantity.unit) or _CHOSEN_UNITS.get(quantity.name) or (("", "", 1.0),)
        base = quantity.stored.removesuffix(units[0][0]) if units[0][0] else quantity.stored
        for suffix, words, scale in units:
            yield f"{base}{suffix}", Choice(quantity.title + words, Meaning(quantity.stored, scale))


CHOICES: dict[str, Choice] = dict(_choices())
"""What a person can choose as the meaning of a metric: key -> title, and the series with the factor to its unit."""
