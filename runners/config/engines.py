"""The engines, one row each. Everything that parlab decides by the engine of a run is a column here.

To add an engine, follow the recipe in CONTRIBUTING.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from runners.schedules import SCHEDULES

from .features import FEATURE_FIELDS, PRECISIONS, RECOMPUTES

PIPELINE_FIELDS = (
    "parallel.schedule",
    "parallel.wire_precision",
    "parallel.warmup_slope",
    "parallel.virtual_stages",
)
"""Fields that only engines with pipeline stages read."""

ANY: tuple[Any, ...] = ()
"""In `Engine.supports`: all values of a field."""
PLAIN: Mapping[str, tuple[Any, ...]] = {
    "model.kind": ("gpt",),
    "model.attention_mask": ("causal",),
    "train.precision": ("fp32",),
    "train.recompute": ("none",),
    "train.gradient_clipping": (0.0,),
    "parallel.tensor_parallel_size": (1,),
    "parallel.pipeline_parallel_size": (1,),
    "parallel.schedule": ("1f1b",),
    "parallel.zero_stage": (0,),
}
"""The values that every engine supports: replicas of a GPT in fp32. A row adds what its engine can do beyond that."""
ANY_MODEL = {"model.kind": ANY, "model.attention_mask": ANY}
ANYTHING = dict.fromkeys(PLAIN, ANY)
"""For an engine that does not train itself."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Engine:
    """What one engine reads, supports, starts and measures."""

    name: str
    """Value of `parallel.engine`."""
    module: str
    """Module of the engine: `python -m MODULE --config FILE`."""
    purpose: str
    """What the engine does, in one line."""

    sections: tuple[str, ...] = ()
    """Sections that this engine reads and most others do not."""
    fields: tuple[str, ...] = ()
    """Fields of the shared sections that this engine reads and some others do not."""
    reads_only: tuple[str, ...] | None = None
    """All fields of sections model, train and parallel that this engine reads; None: no such limit."""
    ignores: tuple[str, ...] = ()
    """Fields that the engine of its trials reads, but that the search sets itself."""
    supports: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Field -> the values that this engine supports, where these are not those of the plain case."""

    has_steps: bool = True
    """Its numbers belong to steps of a training. False: to messages, trials or experiments."""
    reports_progress: bool = True
    """Prints an event for each step or message size, so that a long silence means that it hangs."""
    trains: bool = False
    """Each iteration is one training step of the configured model, so that FLOPs and MFU can be computed."""
    is_planned: bool = False
    """The planner predicts the time and memory of its iterations."""
    may_be_a_baseline: bool = False
    """Studies may compare their trials with a run of this engine."""
    may_be_a_trial: bool = False
    """Engine capacity may use it for its trials."""
    trial_engine: str = ""
    """Engine of the short runs that a search starts; empty: none, or the one that `capacity.engine` names."""

    starts_its_own_ranks: bool = False
    """One process, which starts all others; the launcher starts no ranks."""
    is_external: bool = False
    """Starts a program that is not parlab's: of the configuration only the fields that fill its command are facts."""
    has_product_layout: bool = True
    """Its number of ranks is TP x PP x DP."""
    may_span_nodes: bool = False
    """Its ranks meet through torch.distributed at an address, so that they can run on several nodes."""
    measures_health: bool = False
    """Measures a node itself: alone on it, and also while other runs leave the node out."""
    requires: tuple[str, ...] = ("torch",)
    """Python packages that a node must have for it."""

    description: str = ""
    """How reports name the engine; empty: "engine NAME"."""

    @cached_property
    def supported_values(self) -> dict[str, tuple[Any, ...]]:
        """Field -> the only values that the engine supports; any other field may have any value."""
        return {field: values for field, values in {**PLAIN, **self.supports}.items() if values != ANY}

    @property
    def title(self) -> str:
        """Name of the engine in the text of a report."""
        return self.description or f"engine {self.name}"

    @property
    def is_pipeline(self) -> bool:
        """Whether it splits the layers into stages that follow `parallel.schedule`."""
        return "parallel.schedule" in self.fields

    @property
    def has_zero_stages(self) -> bool:
        """Whether `parallel.zero_stage` changes what its ranks share."""
        return "parallel.zero_stage" in self.fields

    @property
    def can_offload(self) -> bool:
        """Whether it can keep states in the memory of the CPU (`parallel.zero_offload`)."""
        return "parallel.zero_offload" in self.fields

    @property
    def can_train_huggingface(self) -> bool:
        """Whether it can train Hugging Face's implementation of a model."""
        return "model.implementation" in self.fields

    @property
    def can_emulate_compute(self) -> bool:
        """Whether its stages can wait for given times instead of computing."""
        return "emulation" in self.sections

    @property
    def has_device_map(self) -> bool:
        """Whether its ranks are the devices that section sharding names."""
        return "sharding" in self.sections

    @property
    def measures_bandwidth(self) -> bool:
        """Whether it times collective operations."""
        return "collectives" in self.sections

    @property
    def searches_capacity(self) -> bool:
        """Whether it searches for the largest model or batch, or for the fewest processes."""
        return "capacity" in self.sections

    @property
    def is_data_parallel_only(self) -> bool:
        """Whether all its ranks are replicas: neither tensor nor pipeline parallel."""
        sizes = ("parallel.tensor_parallel_size", "parallel.pipeline_parallel_size")
        return all(self.supported_values.get(size) == (1,) for size in sizes)

    @property
    def reads_batches(self) -> bool:
        """Whether it reads a global batch, whose size then must suit the layout."""
        return self.reads_only is None or "train.global_batch_size" in self.reads_only


PIPELINE = Engine(
    name="pipeline",
    module="runners.engines.pipeline",
    purpose="trains a GPT in pipeline stages, one process each, with real or emulated compute",
    sections=("emulation", "profile", "checkpoint"),
    fields=(*PIPELINE_FIELDS, "train.compute"),
    supports={
        "model.attention_mask": ("causal", "prefix"),
        "train.precision": ("fp32", "bf16"),
        "parallel.data_parallel_size": (1,),
        "parallel.pipeline_parallel_size": ANY,
        "parallel.schedule": SCHEDULES,
    },
    trains=True,
    is_planned=True,
    may_be_a_baseline=True,
    may_be_a_trial=True,
    may_span_nodes=True,
)
MEGATRON = Engine(
    name="megatron",
    module="runners.engines.megatron",
    purpose="trains a GPT or BERT with tensor, pipeline and data parallelism, as Megatron-LM does",
    sections=("profile", "checkpoint"),
    fields=(*PIPELINE_FIELDS, "parallel.sequence_parallel", "train.log_interval"),
    supports={
        **ANY_MODEL,
        "train.precision": PRECISIONS,
        "train.recompute": RECOMPUTES,
        "train.gradient_clipping": ANY,
        "parallel.tensor_parallel_size": ANY,
        "parallel.pipeline_parallel_size": ANY,
        "parallel.schedule": SCHEDULES,
    },
    trains=True,
    is_planned=True,
    may_be_a_baseline=True,
    may_be_a_trial=True,
    may_span_nodes=True,
)
ALLREDUCE = Engine(
    name="allreduce",
    module="runners.engines.allreduce",
    purpose="measures the bandwidth of collective operations between ranks",
    sections=("collectives",),
    reads_only=("train.iterations", "train.warmup_steps", "train.precision", "parallel.data_parallel_size"),
    supports={
        **ANY_MODEL,
        "train.precision": PRECISIONS,
        "train.recompute": RECOMPUTES,
        "train.gradient_clipping": ANY,
        "parallel.zero_stage": ANY,
    },
    has_steps=False,
    may_span_nodes=True,
)
ZERO = Engine(
    name="zero",
    module="runners.engines.zero",
    purpose="trains with DeepSpeed's ZeRO, stages 0 to 3",
    sections=("profile", "checkpoint"),
    fields=("model.implementation", "parallel.zero_stage", "parallel.zero_offload"),
    supports={**ANY_MODEL, "train.precision": PRECISIONS, "parallel.zero_stage": ANY},
    trains=True,
    is_planned=True,
    may_be_a_baseline=True,
    may_be_a_trial=True,
    may_span_nodes=True,
    requires=("torch", "deepspeed"),
)
HF = Engine(
    name="hf",
    module="runners.engines.hf",
    purpose="trains with Hugging Face's Trainer, the baseline without DeepSpeed",
    sections=("profile", "checkpoint"),
    fields=("model.implementation",),
    supports={
        "model.kind": ANY,
        "model.implementation": ("huggingface",),
        "model.attention_mask": ("causal", "bidirectional"),
        "train.precision": PRECISIONS,
        "train.recompute": ("none", "full"),
    },
    trains=True,
    is_planned=True,
    may_be_a_baseline=True,
    may_span_nodes=True,
    description="Hugging Face's Trainer without DeepSpeed",
    requires=("torch", "transformers"),
)
SHARDING = Engine(
    name="sharding",
    module="runners.engines.sharding",
    purpose="trains stages cut into shards on the devices that a map names",
    sections=("sharding", "profile"),
    supports={**ANY_MODEL, "train.gradient_clipping": ANY, "parallel.data_parallel_size": (1,)},
    trains=True,
    has_product_layout=False,
    may_span_nodes=True,
)
CAPACITY = Engine(
    name="capacity",
    module="runners.engines.capacity",
    purpose="searches for the largest model or batch, or the fewest processes, by short runs of another engine",
    sections=("capacity",),
    supports=ANYTHING,
    has_steps=False,
    reports_progress=False,
    starts_its_own_ranks=True,
    has_product_layout=False,
)
AUTOTUNING = Engine(
    name="autotuning",
    module="runners.engines.autotuning",
    purpose="runs DeepSpeed's own autotuner over engine zero",
    sections=("autotuning",),
    ignores=("parallel.zero_stage", "parallel.zero_offload"),
    supports=ANYTHING,
    trial_engine=ZERO.name,
    has_steps=False,
    reports_progress=False,
    starts_its_own_ranks=True,
    has_product_layout=False,
    requires=("torch", "deepspeed"),
)
HEALTH = Engine(
    name="health",
    module="runners.engines.health",
    purpose="measures the devices of a node, and the links between its ranks or between nodes",
    reads_only=("train.iterations", "train.warmup_steps", "parallel.data_parallel_size"),
    supports={
        **ANY_MODEL,
        "train.precision": PRECISIONS,
        "train.recompute": RECOMPUTES,
        "train.gradient_clipping": ANY,
        "parallel.zero_stage": ANY,
    },
    has_steps=False,
    may_span_nodes=True,
    measures_health=True,
    description="a health sweep",
)
COMMAND = Engine(
    name="command",
    module="runners.engines.command",
    purpose="starts a program that the node's administrator has allowed",
    sections=("command", "checkpoint"),
    fields=("model.implementation", "parallel.zero_offload", *FEATURE_FIELDS),
    supports=ANYTHING,
    reports_progress=False,
    starts_its_own_ranks=True,
    is_external=True,
    has_product_layout=False,
    may_span_nodes=True,
    requires=(),
)

ENGINES = {
    row.name: row
    for row in (PIPELINE, MEGATRON, ALLREDUCE, ZERO, HF, SHARDING, CAPACITY, AUTOTUNING, HEALTH, COMMAND)
}  # fmt: skip
"""Name -> engine, in the order in which forms and messages list them."""

UNKNOWN = Engine(
    name="", module="", purpose="stands for the engine of an imported run that names none", supports=ANYTHING
)


def engine_names(matches: Callable[[Engine], bool]) -> list[str]:
    """Return the names of the engines for which `matches` is true, in the order of the table."""
    return [row.name for row in ENGINES.values() if matches(row)]


def engine_of(sections: Mapping[str, Any]) -> Engine:
    """Return the engine of a stored configuration; UNKNOWN if it names none that the table contains."""
    return ENGINES.get(str((sections.get("parallel") or {}).get("engine")), UNKNOWN)


def training_engine(engine: Engine, capacity_engine: Any) -> Engine:
    """Return the engine that trains in a run of `engine`: for a search, that of its trials."""
    if engine.searches_capacity:
        return ENGINES.get(str(capacity_engine), UNKNOWN)
    return ENGINES.get(engine.trial_engine, engine)
