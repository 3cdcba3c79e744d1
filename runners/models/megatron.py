"""Networks of the megatron engine: GPT and BERT split into stages and over tensor parallel ranks.

The GPT has the same weights as that of `gpt.py`. The BERT is Megatron-LM's: pre-norm, learned positions and segments, a
masked-token head and a next-sentence head; without dropout, and with a head that is not tied to the embedding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from runners.config import ModelSection
from runners.models import gpt
from runners.models.attention import attend
from runners.models.linear import Linear
from runners.models.seeds import generator
from runners.models.tensor_parallel import TensorGroup, cross_entropy, enter, leave, unite

Recompute = Literal["none", "selective", "full"]
NUM_SEGMENTS = 2


class Inputs(NamedTuple):
    """One micro batch; tensors that a stage does not need may be None."""

    tokens: Tensor | None
    """(batch, sequence)."""
    targets: Tensor | None = None
    """(batch, sequence) of a GPT, (batch, masked) of a BERT."""
    segments: Tensor | None = None
    """BERT: (batch, sequence), 0 or 1."""
    positions: Tensor | None = None
    """BERT: (batch, masked), positions of the targets."""
    next_sentence: Tensor | None = None
    """BERT: (batch,), 1 if the second segment does not follow the first, else 0."""


class Losses(NamedTuple):
    """Means over one micro batch, fp32 scalars."""

    lm: Tensor
    sop: Tensor | None = None
    """Loss of the next-sentence head; the name is Megatron-LM's."""

    @property
    def total(self) -> Tensor:
        return self.lm if self.sop is None else self.lm + self.sop


class _Attention(nn.Module):
    """This rank's heads of a self-attention layer."""

    def __init__(self, model: ModelSection, ranks: TensorGroup, recompute: Recompute) -> None:
        super().__init__()
        self.ranks, self.recompute = ranks, recompute
        self.num_heads = model.num_attention_heads // ranks.size
        self.is_causal = model.attention_mask == "causal"
        self.prefix_length, self.backend = model.prefix_length, model.attention_backend
        share = model.hidden_size // ranks.size
        self.qkv = Linear(model.hidden_size, 3 * share)
        self.output = Linear(share, model.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        x = enter(x, self.ranks)
        batch, sequence, _ = x.shape
        query, key, value = self.qkv(x).view(batch, sequence, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        if self.recompute == "selective":  # attention scores are large and cheap to recompute
            mixed = cast(Tensor, checkpoint(self._mix, query, key, value, use_reentrant=False))
        else:
            mixed = self._mix(query, key, value)
        return _output(self.output, mixed.transpose(1, 2).reshape(batch, sequence, -1), self.ranks)

    def _mix(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        prefix, backend = self.prefix_length, self.backend
        return attend(query, key, value, is_causal=self.is_causal, prefix_length=prefix, backend=backend)


class _Mlp(nn.Module):
    """This rank's columns of the MLP's inner layer."""

    def __init__(self, hidden_size: int, ranks: TensorGroup) -> None:
        super().__init__()
        self.ranks = ranks
        self.up = Linear(hidden_size, 4 * hidden_size // ranks.size)
        self.output = Linear(4 * hidden_size // ranks.size, hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        return _output(self.output, functional.gelu(self.up(enter(x, self.ranks))), self.ranks)


def _output(layer: Linear, x: Tensor, ranks: TensorGroup) -> Tensor:
    """Apply a row parallel layer, which is split along its input; the bias is added once, after the sum."""
    if ranks.size == 1:
        return cast(Tensor, layer(x))
    return leave(layer.product(x), ranks) + layer.bias


class _Block(nn.Module):
    """One transformer layer, named as in gpt.Block."""

    def __init__(self, model: ModelSection, ranks: TensorGroup, recompute: Recompute) -> None:
        super().__init__()
        self.recompute = recompute
        self.attention_norm = nn.LayerNorm(model.hidden_size)
        self.attention = _Attention(model, ranks, recompute)
        self.mlp_norm = nn.LayerNorm(model.hidden_size)
        self.mlp = _Mlp(model.hidden_size, ranks)

    def forward(self, x: Tensor) -> Tensor:
        if self.recompute == "full" and torch.is_grad_enabled():
            return cast(Tensor, checkpoint(self._layer, x, use_reentrant=False))
        return self._layer(x)

    def _layer(self, x: Tensor) -> Tensor:
        x = x + cast(Tensor, self.attention(self.attention_norm(x)))
        return x + cast(Tensor, self.mlp(self.mlp_norm(x)))


class _Embeddings(nn.Module):
    """Token embeddings split over the ranks along the vocabulary; position and segment embeddings are replicated."""

    def __init__(self, model: ModelSection, ranks: TensorGroup) -> None:
        super().__init__()
        self.ranks = ranks
        self.token = nn.Embedding(model.vocab_size // ranks.size, model.hidden_size)
        self.position = nn.Embedding(model.sequence_length, model.hidden_size)
        if model.kind == "bert":
            self.segment = nn.Embedding(NUM_SEGMENTS, model.hidden_size)

    def forward(self, tokens: Tensor, segments: Tensor | None) -> Tensor:
        ranks, share = self.ranks, self.token.num_embeddings
        part = ranks.part(tokens.shape[1]) if ranks.sequence_parallel else slice(0, tokens.shape[1])
        if ranks.size == 1:
            x = cast(Tensor, self.token(tokens))
        else:
            local = tokens - ranks.rank * share
            is_mine = (local >= 0) & (local < share)
            x = leave(self.token(local.clamp(0, share - 1)) * is_mine[..., None], ranks)
        x = x + self.position.weight[part]
        return x if segments is None else x + cast(Tensor, self.segment(segments[:, part]))


class _Head(nn.Module):
    """Final norm and the projection to the vocabulary, which is split over the ranks; for a BERT both heads."""

    def __init__(self, model: ModelSection, ranks: TensorGroup) -> None:
        super().__init__()
        self.ranks = ranks
        self.first = max(model.prefix_length - 1, 0)
        is_bert, hidden = model.kind == "bert", model.hidden_size
        self.norm = nn.LayerNorm(hidden)
        self.vocabulary = Linear(hidden, model.vocab_size // ranks.size, bias=is_bert)
        self.transform = Linear(hidden, hidden) if is_bert else None
        if is_bert:
            self.transform_norm = nn.LayerNorm(hidden)
            self.pooler = Linear(hidden, hidden)
            self.next_sentence = Linear(hidden, 2)

    def forward(self, x: Tensor, inputs: Inputs) -> Losses:
        x, targets = unite(self.norm(x), self.ranks), inputs.targets
        assert targets is not None
        if self.transform is None:
            x, targets = x[:, self.first :], targets[:, self.first :]
            return Losses(self._language(x, targets))
        assert inputs.positions is not None
        assert inputs.next_sentence is not None
        pooled = torch.tanh(self.pooler(x[:, 0]))
        sop = functional.cross_entropy(self.next_sentence(pooled).float(), inputs.next_sentence)
        x = x.gather(1, inputs.positions[..., None].expand(-1, -1, x.shape[-1]))
        x = self.transform_norm(functional.gelu(self.transform(x)))
        return Losses(self._language(x, targets), sop)

    def _language(self, x: Tensor, targets: Tensor) -> Tensor:
        x = enter(x, self.ranks._replace(sequence_parallel=False))
        logits = self.vocabulary(x)
        return cross_entropy(logits.flatten(0, -2), targets.reshape(-1), self.ranks)


class MegatronStage(nn.Module):
    """A rank's share of consecutive layers, with embeddings before layer 0 and the heads after the last layer.

    Parameters are named as in gpt.GPTStage. Every layout starts with the same weights, because complete weights are
    drawn and each rank keeps its share. Raises what torch raises when that share does not fit into memory.
    """

    def __init__(
        self,
        model: ModelSection,
        layers: Sequence[int],
        seed: int,
        device: torch.device,
        ranks: TensorGroup | None = None,
        recompute: Recompute = "none",
    ) -> None:
        super().__init__()
        ranks = ranks or TensorGroup()

        def make(ranks: TensorGroup, layers: Sequence[int]) -> dict[str, nn.Module]:
            parts: dict[str, nn.Module] = {str(layer): _Block(model, ranks, recompute) for layer in layers}
            if layers[0] == 0:
                parts["embeddings"] = _Embeddings(model, ranks)
            if layers[-1] == model.num_layers - 1:
                parts["head"] = _Head(model, ranks)
            return parts

        with torch.device("meta"):
            parts = make(ranks, layers)
            whole = make(TensorGroup(), layers)
        for name, part in parts.items():
            part.to_empty(device=device)
            purpose = ("layer", int(name)) if name.isdigit() else (name, 0)
            _draw(part, whole[name], generator(seed, *purpose), model.num_layers, ranks)
        self.embeddings = parts.pop("embeddings", None)
        self.head = parts.pop("head", None)
        self.blocks = nn.ModuleDict(parts)

    def forward(self, x: Tensor | None, inputs: Inputs) -> Tensor | Losses:
        """Return activations (batch, sequence, hidden), or on the last stage the losses.

        With sequence parallelism over t ranks, activations are (batch, sequence / t, hidden). `x` is None on the first
        stage, which reads the tokens of `inputs`; the last stage reads the targets.
        """
        if self.embeddings is not None:
            assert inputs.tokens is not None
            x = self.embeddings(inputs.tokens, inputs.segments)
        for block in self.blocks.values():
            x = block(x)
        assert x is not None
        return x if self.head is None else cast(Losses, self.head(x, inputs))


def _draw(part: nn.Module, whole: nn.Module, numbers: torch.Generator, num_layers: int, ranks: TensorGroup) -> None:
    """Draw complete weights as gpt.initial_weights does, one at a time, and keep this rank's share of each."""
    shares = dict(part.named_parameters())
    for name, weight in gpt.initial_weights(whole, numbers, num_layers):
        with torch.no_grad():
            shares[name].copy_(share_of(name, weight, ranks))


def share_of(name: str, whole: Tensor, ranks: TensorGroup) -> Tensor:
    """Return a rank's share of the parameter `whole`; `name` is its name in the module or in the model."""
    if "qkv" in name:
        three = whole.view(3, whole.shape[0] // 3, *whole.shape[1:])
        return three[:, ranks.part(three.shape[1])].flatten(0, 1)
    match split_dimension(name):
        case 0:
            return whole[ranks.part(whole.shape[0])]
        case 1:
            return whole[:, ranks.part(whole.shape[1])]
        case _:
            return whole


def split_dimension(name: str) -> int | None:
    """Return the dimension along which ranks split a parameter, None if they replicate it.

    That of query, key and value is of their weight as (3, heads, ...): ranks have some heads of each.
    """
    if name.endswith(("up.weight", "up.bias", "token.weight", "vocabulary.weight", "vocabulary.bias")):
        return 0
    return 1 if "qkv" in name or name.endswith(".output.weight") else None


def is_shared(name: str) -> bool:
    """Return whether ranks hold different shares of a parameter; all other parameters are replicated."""
    whole = torch.empty(6, 2, device="meta")
    return share_of(name, whole, TensorGroup(size=2)).shape != whole.shape


def is_in_sequence_part(name: str) -> bool:
    """Return whether a replicated parameter is applied to a part of the sequence under sequence parallelism.

    The gradients of such parameters must be summed over the ranks.
    """
    head = ("head.norm.weight", "head.norm.bias")
    return not is_shared(name) and (".blocks." in f".{name}" or "embeddings." in name or name.endswith(head))
