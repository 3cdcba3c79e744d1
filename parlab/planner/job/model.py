"""The planner's description of a transformer: sizes, attention, MLP and experts, and its parameter counts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

LARGEST = 2**40
"""Upper limit of all sizes; a larger value is a typing error."""
Attention = Literal["gqa", "mla"]
_SIZES = (
    "num_layers",
    "hidden_size",
    "num_heads",
    "sequence_length",
    "vocab_size",
    "num_experts",
    "expert_groups",
    "kv_lora_rank",
    "rope_head_dim",
)


def check_size(name: str, value: object, least: int = 1) -> None:
    """Raise ValueError unless `value` is a whole number from `least` to LARGEST."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= LARGEST:
        raise ValueError(f"{name} {value!r} is invalid; use a whole number from {least} to {LARGEST}")


@dataclass(frozen=True)
class Model:
    """A transformer (GPT, BERT, Llama, mixture of experts); the defaults are those of GPT-2 and GPT-3."""

    num_layers: int
    hidden_size: int
    num_heads: int
    sequence_length: int
    vocab_size: int
    num_kv_heads: int | None = None
    """Heads of keys and values; None: num_heads."""
    ffn_hidden_size: int | None = None
    """Width of the MLP, of each expert in a mixture of experts; None: 4 * hidden_size."""
    is_gated: bool = False
    """A third matrix gates the MLP (SwiGLU)."""
    num_experts: int = 1
    experts_per_token: int = 1
    has_tied_embeddings: bool = True
    has_positions: bool = True
    """Learned position embeddings; rotary embeddings have no parameters."""
    is_causal: bool = True
    head_dim: int | None = None
    """Width of one head; None: hidden_size / num_heads."""
    attention: Attention = "gqa"
    """gqa: heads of keys and values are shared by groups of queries; mla: keys and values are compressed (DeepSeek)."""
    q_lora_rank: int = 0
    """Width of the compressed queries of MLA; 0: not compressed."""
    kv_lora_rank: int = 512
    """Width of the compressed keys and values of MLA."""
    rope_head_dim: int = 64
    """Width of the rotary part of a head of MLA, in addition to head_dim."""
    expert_groups: int = 1
    """Groups of experts, for routing that is limited to some of them."""
    groups_per_token: int | None = None
    """Groups that the experts of a token come from (node-limited routing); None: all."""
    shared_experts: int = 0
    """Experts that every token uses."""
    dense_layers: int = 0
    """First layers with an MLP instead of experts."""
    dense_ffn_size: int | None = None
    """Width of the MLP of these layers; None: ffn_hidden_size."""
    sliding_window: int | None = None
    """Keys that a token sees in a layer with a window; None: all."""
    windowed_share: float = 0.5
    """Share of the layers with a sliding window, if there is one."""
    has_dropout: bool = True

    def __post_init__(self) -> None:
        for name in _SIZES:
            check_size(name, getattr(self, name))
        for name in ("shared_experts", "q_lora_rank"):
            check_size(name, getattr(self, name), 0)
        if not 0 <= self.windowed_share <= 1:
            raise ValueError(f"windowed_share {self.windowed_share:g} is out of range; use 0 to 1")
        for name in ("num_kv_heads", "ffn_hidden_size", "head_dim", "dense_ffn_size", "sliding_window"):
            if getattr(self, name) is not None:
                check_size(name, getattr(self, name))
        if not 1 <= self.experts_per_token <= self.num_experts:
            raise ValueError(
                f"experts_per_token {self.experts_per_token} is out of range for num_experts {self.num_experts};"
                f" use 1 to {self.num_experts}"
            )
        if self.num_experts % self.expert_groups:
            raise ValueError(
                f"expert_groups {self.expert_groups} does not divide num_experts {self.num_experts}; use a divisor"
            )
        if not 1 <= (self.groups_per_token or 1) <= self.expert_groups:
            raise ValueError(
                f"groups_per_token {self.groups_per_token} is out of range for expert_groups {self.expert_groups};"
                f" use 1 to {self.expert_groups}"
            )
        if not 0 <= self.dense_layers <= self.num_layers:
            raise ValueError(f"dense_layers {self.dense_layers} is out of range; use 0 to {self.num_layers}")

    @property
    def is_plain(self) -> bool:
        """The closed formulas of a GPT apply: MLP of 4 * hidden_size, as many keys as queries, no experts."""
        return (
            self.num_kv_heads in (None, self.num_heads)
            and self.ffn_size == 4 * self.hidden_size
            and not self.is_gated
            and self.num_experts == 1
            and self.attention == "gqa"
            and self.attention_size == self.hidden_size
            and self.sliding_window is None
        )

    @cached_property
    def head_size(self) -> float:
        """Width of one attention head."""
        return self.head_dim or self.hidden_size / self.num_heads

    @cached_property
    def attention_size(self) -> float:
        """Width of all heads together."""
        return self.num_heads * self.head_size

    @cached_property
    def kv_size(self) -> float:
        """Width of the keys, which is also the width of the values."""
        return (self.num_kv_heads or self.num_heads) * self.head_size

    @cached_property
    def score_size(self) -> float:
        """Mean width, over all heads, of the products of queries with keys and of scores with values."""
        rotary = self.num_heads * self.rope_head_dim / 2 if self.attention == "mla" else 0
        return self.attention_size + rotary

    @property
    def ffn_size(self) -> int:
        """Width of the MLP or of one expert."""
        return self.ffn_hidden_size or 4 * self.hidden_size

    @property
    def mlp_matrices(self) -> int:
        """Number of matrices of one MLP."""
        return 3 if self.is_gated else 2

    @cached_property
    def attention_products(self) -> tuple[tuple[float, float], ...]:
        """Rows and columns of the weight matrices of one layer's attention."""
        hidden, heads, head = float(self.hidden_size), self.num_heads, self.head_size
        if self.attention == "gqa":
            return ((hidden, self.attention_size + 2 * self.kv_size), (self.attention_size, hidden))
        queries = heads * (head + self.rope_head_dim)
        rank = float(self.q_lora_rank)
        compressed = ((hidden, rank), (rank, queries)) if rank else ((hidden, queries),)
        keys = ((hidden, self.kv_lora_rank + self.rope_head_dim), (float(self.kv_lora_rank), 2 * heads * head))
        return (*compressed, *keys, (heads * head, hidden))

    @cached_property
    def attention_parameters(self) -> float:
        """Parameters of one layer's attention: matrices, biases and norm."""
        return sum(rows * columns for rows, columns in self.attention_products) + 6 * self.hidden_size

    @cached_property
    def expert_parameters(self) -> float:
        """Parameters of one MLP or expert."""
        return self.mlp_matrices * self.hidden_size * self.ffn_size + self.ffn_size + self.hidden_size

    @cached_property
    def dense_layer_parameters(self) -> float:
        """Parameters of one of the first, dense layers."""
        mlp = self.mlp_matrices * self.hidden_size * (self.dense_ffn_size or self.ffn_size)
        return self.attention_parameters + mlp + 2 * self.hidden_size

    @cached_property
    def shared_layer_parameters(self) -> float:
        """Parameters of a layer except those of its routed experts: all ranks of an expert parallel group have them."""
        router = self.hidden_size * self.num_experts if self.num_experts > 1 else 0
        shared = self.shared_experts * self.expert_parameters
        return self.attention_parameters + router + shared + 2 * self.hidden_size

    @cached_property
    def routed_layer_parameters(self) -> float:
        """Parameters of all routed experts of a layer, or of its MLP."""
        return self.num_experts * self.expert_parameters

    @property
    def layer_parameters(self) -> float:
        """Parameters of one layer with all experts; 12 h^2 + 13 h for a GPT (Narayanan et al. 2021, equation 2)."""
        return self.shared_layer_parameters + self.routed_layer_parameters

    @property
    def embedding_parameters(self) -> float:
        """Parameters of the token embedding and of learned positions."""
        return self.hidden_size * (self.vocab_size + self.sequence_length * self.has_positions)

    @property
    def head_parameters(self) -> float:
        """Parameters of a separate output layer; 0 if it is tied to the embedding."""
        return 0 if self.has_tied_embeddings else self.hidden_size * self.vocab_size

    @cached_property
    def parameters(self) -> float:
        """Total number of parameters."""
        layers = (self.num_layers - self.dense_layers) * self.layer_parameters
        dense = self.dense_layers * self.dense_layer_parameters
        return layers + dense + self.embedding_parameters + self.head_parameters

    @cached_property
    def active_parameters(self) -> float:
        """Parameters used per token: of the routed experts only those that a token is routed to."""
        unused = (self.num_experts - self.experts_per_token) * self.expert_parameters
        return self.parameters - (self.num_layers - self.dense_layers) * unused

    @property
    def matrix_parameters(self) -> float:
        """Parameters of the layers used per token, without embeddings and output layer."""
        return self.active_parameters - self.embedding_parameters - self.head_parameters

    @cached_property
    def keys_per_token(self) -> float:
        """Mean number of keys that a token attends to, over tokens and layers; half the sequence if causal."""
        share = 0.5 if self.is_causal else 1.0
        full = self.sequence_length * share
        if self.sliding_window is None:
            return full
        return (1 - self.windowed_share) * full + self.windowed_share * min(full, self.sliding_window)
