"""The planner's description of a training: model, batch and layout.

It covers more than a RunConfig (grouped queries, gated MLPs, experts, schedules of other trainers), so that the same
formulas predict published measurements and parlab's configurations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Recompute = Literal["none", "selective", "full"]
Schedule = Literal["gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zb-h2", "zb-v"]
Precision = Literal["fp32", "fp16", "bf16", "fp8"]
SCHEDULES: tuple[Schedule, ...] = ("gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zb-h2", "zb-v")
LARGEST = 2**40
"""Upper limit of all sizes; a larger value is a typing error."""


@dataclass(frozen=True)
class Model:
    """A transformer (GPT or BERT), optionally with grouped queries, a gated MLP or experts."""

    num_layers: int
    hidden_size: int
    num_heads: int
    sequence_length: int
    vocab_size: int
    num_kv_heads: int | None = None
    """Heads of keys and values; None: num_heads."""
    ffn_hidden_size: int | None = None
    """Width of the MLP; None: 4 * hidden_size."""
    is_gated: bool = False
    """A third matrix gates the MLP (SwiGLU)."""
    num_experts: int = 1
    experts_per_token: int = 1
    has_tied_embeddings: bool = True
    has_positions: bool = True
    """Learned position embeddings; rotary embeddings have no parameters."""
    is_causal: bool = True

    def __post_init__(self) -> None:
        for name in ("num_layers", "hidden_size", "num_heads", "sequence_length", "vocab_size"):
            _check_size(name, getattr(self, name))
        for name in ("num_kv_heads", "ffn_hidden_size"):
            if getattr(self, name) is not None:
                _check_size(name, getattr(self, name))
        if not 1 <= self.experts_per_token <= self.num_experts:
            raise ValueError(
                f"experts_per_token {self.experts_per_token} is out of range for num_experts {self.num_experts};"
                f" use 1 to {self.num_experts}"
            )

    @property
    def head_size(self) -> float:
        """Width of one attention head."""
        return self.hidden_size / self.num_heads

    @property
    def kv_size(self) -> float:
        """Width of the keys, which is also the width of the values."""
        return (self.num_kv_heads or self.num_heads) * self.head_size

    @property
    def ffn_size(self) -> int:
        """Width of the MLP."""
        return self.ffn_hidden_size or 4 * self.hidden_size

    @property
    def mlp_matrices(self) -> int:
        """Number of matrices of one MLP."""
        return 3 if self.is_gated else 2

    @property
    def attention_parameters(self) -> float:
        """Parameters of one layer's attention: matrices, biases and norm."""
        hidden = self.hidden_size
        return 2 * hidden**2 + 2 * hidden * self.kv_size + 4 * hidden + 2 * hidden

    @property
    def layer_parameters(self) -> float:
        """Parameters of one layer with all experts; 12 h^2 + 13 h for a GPT (Narayanan et al. 2021, equation 2)."""
        mlp = self.mlp_matrices * self.hidden_size * self.ffn_size + self.ffn_size + self.hidden_size
        return self.attention_parameters + self.num_experts * mlp + 2 * self.hidden_size

    @property
    def embedding_parameters(self) -> float:
        """Parameters of the token embedding and of learned positions."""
        return self.hidden_size * (self.vocab_size + self.sequence_length * self.has_positions)

    @property
    def head_parameters(self) -> float:
        """Parameters of a separate output layer; 0 if it is tied to the embedding."""
        return 0 if self.has_tied_embeddings else self.hidden_size * self.vocab_size

    @property
    def parameters(self) -> float:
        """Total number of parameters."""
        return self.num_layers * self.layer_parameters + self.embedding_parameters + self.head_parameters


@dataclass(frozen=True)
class Job:
    """One training job: model, batch, precision and layout."""

    model: Model
    global_batch_size: int
    micro_batch_size: int = 1
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    data_parallel: int = 1
    precision: Precision = "bf16"
    recompute: Recompute = "none"
    schedule: Schedule = "1f1b"
    virtual_stages: int = 1
    sequence_parallel: bool = False
    zero_stage: int = 0
    zero_offload: Literal["none", "optimizer", "all"] = "none"
    has_checkpoints_on_cpu: bool = False
    """Recomputation starts from activations stored in CPU memory."""
    gradient_bytes: int | None = None
    """Bytes per accumulated gradient; None: the bytes of the precision."""
    optimizer_bytes: int | None = None
    """Bytes of optimizer state per parameter, including the fp32 copy; None: those of Adam."""
    overlaps_gradients: bool = False
    """Gradient communication overlaps with the backward pass."""
    gradient_messages: int = 1
    """Number of messages per gradient reduction: 1 for one flat buffer, many if each tensor is reduced separately."""
    has_flash_attention: bool = False
    """Attention does not store the matrix of scores."""
    family: str = ""
    """Engine or framework that trains; each calibration is for one."""

    def __post_init__(self) -> None:
        for name in ("global_batch_size", "micro_batch_size", "tensor_parallel", "pipeline_parallel", "data_parallel"):
            _check_size(name, getattr(self, name))
        _check_size("virtual_stages", self.virtual_stages)
        if self.schedule not in SCHEDULES:
            raise ValueError(f"unknown schedule {self.schedule!r}; use {', '.join(SCHEDULES)}")
        if self.zero_stage not in (0, 1, 2, 3):
            raise ValueError(f"zero_stage {self.zero_stage} is out of range; use 0, 1, 2 or 3")

    @property
    def world_size(self) -> int:
        """GPUs (or processes) of the job."""
        return self.tensor_parallel * self.pipeline_parallel * self.data_parallel

    @property
    def num_micro_batches(self) -> int:
        """Micro batches per data parallel rank and iteration, rounded up."""
        return max(1, math.ceil(self.global_batch_size / (self.micro_batch_size * self.data_parallel)))

    @property
    def tokens(self) -> int:
        """Tokens of one iteration."""
        return self.global_batch_size * self.model.sequence_length

    @property
    def value_bytes(self) -> int:
        """Bytes per weight or activation; fp8 applies to matrix products only, activations stay in 16 bits."""
        return 4 if self.precision == "fp32" else 2


def _check_size(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= LARGEST:
        raise ValueError(f"{name} {value!r} is invalid; use a whole number from 1 to {LARGEST}")
