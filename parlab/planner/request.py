"""The input of the planner for people and programs: layers, GPUs, Gbit/s, billions of tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from .cluster import Cluster, cluster
from .hardware import Gpu
from .workload import Job, Model

_MOST_NODES = 4096


def _empty_as_none(value: Any) -> Any:
    """Convert an empty form field to None."""
    return None if isinstance(value, str) and not value.strip() else value


_Size = Annotated[int, Field(ge=1, le=2**31)]
_MaybeSize = Annotated[_Size | None, BeforeValidator(_empty_as_none)]
_Positive = Annotated[float, Field(gt=0, le=1e12, allow_inf_nan=False)]
_MaybePositive = Annotated[_Positive | None, BeforeValidator(_empty_as_none)]


class PlanRequest(BaseModel):
    """A training and the cluster it would run on."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    layers: Annotated[int, Field(ge=1, le=10_000)] = 96
    """Transformer layers."""
    hidden: Annotated[int, Field(ge=1, le=2**20)] = 12_288
    """Width of the residual stream."""
    heads: Annotated[int, Field(ge=1, le=2**16)] = 96
    """Attention heads of a layer."""
    kv_heads: _MaybeSize = None
    """Heads of keys and values; empty: as many as heads."""
    ffn: _MaybeSize = None
    """Width of the MLP; empty: 4 times the width of the residual stream."""
    mlp: Literal["plain", "gated"] = "plain"
    """plain: two matrices; gated: three (SwiGLU)."""
    experts: Annotated[int, Field(ge=1, le=4096)] = 1
    """MLPs per layer; each token uses some of them."""
    experts_per_token: Annotated[int, Field(ge=1, le=4096)] = 1
    """MLPs that each token is routed to."""
    sequence: Annotated[int, Field(ge=1, le=2**24)] = 2048
    """Tokens of a sequence."""
    vocabulary: Annotated[int, Field(ge=1, le=2**24)] = 51_200
    """Entries of the token embedding."""
    attention: Literal["flash", "plain"] = "flash"
    """flash: fused, does not store attention scores; plain: stores them."""
    global_batch: Annotated[int, Field(ge=1, le=2**24)] = 1536
    """Sequences of an iteration, over all replicas."""
    micro_batch: Annotated[int, Field(ge=1, le=2**20)] = 1
    """Sequences of one forward pass."""
    precision: Literal["bf16", "fp16", "fp8", "fp32"] = "bf16"
    """Arithmetic of the matrix products."""
    recompute: Literal["none", "selective", "full"] = "full"
    """Activations that the backward pass recomputes."""
    tensor_parallel: Annotated[int, Field(ge=1, le=4096)] = 8
    """GPUs that share each layer."""
    sequence_parallel: bool = False
    """Tensor parallel ranks also split norms and residuals."""
    pipeline_parallel: Annotated[int, Field(ge=1, le=4096)] = 12
    """Stages that the layers are split into."""
    schedule: Literal["1f1b", "interleaved-1f1b", "gpipe", "zb-h1", "zb-h2"] = "1f1b"
    """Order of forward and backward passes in a pipeline."""
    chunks: Annotated[int, Field(ge=1, le=256)] = 1
    """Chunks of layers on each rank; for interleaved-1f1b."""
    zero: Annotated[int, Field(ge=0, le=3)] = 0
    """ZeRO stage."""
    gpu: Annotated[str, Field(min_length=1, max_length=80)] = "A100 SXM4 80 GB"
    """Name of the device in the catalogue."""
    memory_gib: _MaybePositive = None
    """Memory of one device (GiB); empty: the value in the catalogue."""
    nodes: Annotated[int, Field(ge=1, le=_MOST_NODES)] = 48
    """Number of nodes."""
    gpus_per_node: Annotated[int, Field(ge=1, le=1024)] = 8
    """Devices per node."""
    network_gbit_s: _MaybePositive = None
    """Network bandwidth of one node (Gbit/s); empty: the usual value for such nodes."""
    tokens_billion: _Positive = 300.0
    """Tokens of the training (10^9)."""
    price: Annotated[
        Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)] | None, BeforeValidator(_empty_as_none)
    ] = None
    """Price of one GPU hour, in any currency; empty: no cost is computed."""
    wanted_days: _MaybePositive = None
    """Deadline of the training (days); empty: no verdict."""

    @model_validator(mode="after")
    def _fits_together(self) -> PlanRequest:
        if self.hidden % self.heads:
            raise ValueError(f"heads {self.heads} does not divide hidden {self.hidden}; use a divisor")
        if self.kv_heads and self.heads % self.kv_heads:
            raise ValueError(f"kv_heads {self.kv_heads} does not divide heads {self.heads}; use a divisor")
        if self.experts_per_token > self.experts:
            raise ValueError(
                f"experts_per_token {self.experts_per_token} is more than experts {self.experts}; use at most that"
            )
        if self.heads % self.tensor_parallel:
            raise ValueError(
                f"tensor_parallel {self.tensor_parallel} does not divide heads {self.heads}; use a divisor"
            )
        if self.pipeline_parallel * self.chunks > self.layers:
            raise ValueError(
                f"pipeline_parallel {self.pipeline_parallel} x chunks {self.chunks} is more than layers {self.layers};"
                " use fewer stages or chunks"
            )
        share = self.tensor_parallel * self.pipeline_parallel
        if self.gpus % share:
            raise ValueError(
                f"nodes {self.nodes} x {self.gpus_per_node} GPUs = {self.gpus} cannot be split into tensor_parallel"
                f" {self.tensor_parallel} x pipeline_parallel {self.pipeline_parallel} = {share}; use a divisor"
            )
        if self.global_batch % (self.micro_batch * self.replicas):
            raise ValueError(
                f"global_batch {self.global_batch} is not a multiple of micro_batch {self.micro_batch} x"
                f" {self.replicas} replicas = {self.micro_batch * self.replicas}; use a multiple"
            )
        return self

    @property
    def gpus(self) -> int:
        """Total number of devices."""
        return self.nodes * self.gpus_per_node

    @property
    def replicas(self) -> int:
        """Data parallel size: the GPUs divided by tensor and pipeline parallel size."""
        return max(1, self.gpus // (self.tensor_parallel * self.pipeline_parallel))

    def job(self) -> Job:
        """Return the job of the request."""
        model = Model(
            self.layers,
            self.hidden,
            self.heads,
            self.sequence,
            self.vocabulary,
            num_kv_heads=self.kv_heads,
            ffn_hidden_size=self.ffn,
            is_gated=self.mlp == "gated",
            num_experts=self.experts,
            experts_per_token=self.experts_per_token,
        )
        return Job(
            model,
            self.global_batch,
            self.micro_batch,
            self.tensor_parallel,
            self.pipeline_parallel,
            self.replicas,
            precision=self.precision,
            recompute=self.recompute,
            schedule=self.schedule,
            virtual_stages=self.chunks if self.schedule == "interleaved-1f1b" else 1,
            sequence_parallel=self.sequence_parallel,
            zero_stage=self.zero,
            has_flash_attention=self.attention == "flash",
        )

    def cluster(self, gpu: Gpu) -> Cluster:
        """Return the cluster of the request; `gpu` is the catalogue entry of its device."""
        device = gpu if self.memory_gib is None else _with_memory(gpu, self.memory_gib)
        return cluster(device, self.gpus, self.gpus_per_node, inter_node_gbit_s=self.network_gbit_s)


def _with_memory(gpu: Gpu, gib: float) -> Gpu:
    return Gpu(**{**vars(gpu), "memory_bytes": int(gib * 2**30)})


class Range(NamedTuple):
    """Range of one quantity in the published measurements."""

    title: str
    low: float
    high: float
    unit: str


# Extremes of the rows that `make bench-planner` evaluates.
_COVERED = {
    "parameters": Range("Parameters", 0.066e9, 1.01e12, ""),
    "sequence": Range("Sequence length", 512, 8192, "tokens"),
    "hidden": Range("Width", 768, 25_600, ""),
    "gpus": Range("GPUs", 1, 10_752, ""),
    "micro_batch": Range("Micro batch", 1, 64, "sequences"),
    "tensor_parallel": Range("Tensor parallel size", 1, 16, ""),
    "pipeline_parallel": Range("Pipeline stages", 1, 64, ""),
}
_COVERED_DEVICES = ("V100", "A100", "H100")


def warnings(request: PlanRequest, job: Job, gpu: Gpu) -> Iterator[str]:
    """Generate a warning for each input outside the range in which the planner was validated."""
    values = {
        "parameters": job.model.parameters,
        **{name: float(getattr(request, name)) for name in _COVERED if name != "parameters"},
    }
    for name, value in values.items():
        covered = _COVERED[name]
        if not covered.low <= value <= covered.high:
            unit = f" {covered.unit}" if covered.unit else ""
            yield (
                f"{covered.title} {_number(value)} is outside the range of the measurements used for validation"
                f" ({_number(covered.low)} to {_number(covered.high)}{unit}); the prediction is an extrapolation."
            )
    if not gpu.name.startswith(_COVERED_DEVICES):
        yield (
            f"The planner was not validated on {gpu.name} (only on {', '.join(_COVERED_DEVICES)}); the prediction"
            " relies on its data sheet."
        )
    if job.model.num_experts > 1:
        yield "The planner was not validated on models with experts; communication between experts is not included."


def _number(value: float) -> str:
    return f"{value:,.0f}" if value < 1e7 else f"{value:.3g}"


_REMEDIES = {
    "int_parsing": "use a whole number",
    "int_type": "use a whole number",
    "int_from_float": "use a whole number",
    "float_parsing": "use a number",
    "finite_number": "use a finite number",
    "greater_than": "use more than {gt}",
    "greater_than_equal": "use {ge} or more",
    "less_than_equal": "use {le} or less",
    "literal_error": "use {expected}",
}


class Refusal(NamedTuple):
    """A problem with one field of a request."""

    field: str
    value: str
    message: str


def refusals(error: ValidationError) -> list[Refusal]:
    """Return the problems of a request, one per field."""
    problems = []
    for detail in error.errors():
        field = str(detail["loc"][0])[:60] if detail["loc"] else ""
        value = detail["input"]
        text = "" if isinstance(value, dict | PlanRequest) else str(value)[:60]
        remedy = _REMEDIES.get(detail["type"], "")
        message = remedy.format(**detail.get("ctx", {})) or detail["msg"].removeprefix("Value error, ")
        if detail["type"] == "extra_forbidden":
            message = f"unknown field {field}; use one of {', '.join(PlanRequest.model_fields)}"
        elif field:
            message = f"{field} {text or '(empty)'} is invalid: {message[:1].lower()}{message[1:]}"
        else:
            field = message.split(" ")[0]
        problems.append(Refusal(field, text, message))
    return problems
