"""GPT split into stages: learned position embeddings, pre-norm blocks, GELU, causal or prefix attention; no dropout.

A stage is a slice of the layers; the first stage also has the embeddings, the last one the final norm, the head and
the loss. The head is not tied to the token embedding, so no weight is on two stages. Each layer draws its weights from
its own generator, so any split into stages trains the same network.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from runners.config import ModelSection
from runners.models.attention import attend
from runners.models.linear import Linear
from runners.models.seeds import generator

INIT_STD = 0.02
"""Standard deviation of initial weights, as in GPT-2."""


class Attention(nn.Module):
    """Multi-head self-attention: causal, or with a bidirectional prefix."""

    def __init__(self, model: ModelSection) -> None:
        super().__init__()
        self.num_heads = model.num_attention_heads
        self.prefix_length, self.backend = model.prefix_length, model.attention_backend
        self.qkv = Linear(model.hidden_size, 3 * model.hidden_size)
        self.output = Linear(model.hidden_size, model.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        batch, sequence, hidden = x.shape
        # (batch, sequence, 3, heads, head size) -> three of (batch, heads, sequence, head size)
        query, key, value = self.qkv(x).view(batch, sequence, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = attend(query, key, value, is_causal=True, prefix_length=self.prefix_length, backend=self.backend)
        return cast(Tensor, self.output(mixed.transpose(1, 2).reshape(batch, sequence, hidden)))


class Mlp(nn.Module):
    """Two linear layers with GELU between them; the inner width is four times the hidden size."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.up = Linear(hidden_size, 4 * hidden_size)
        self.output = Linear(4 * hidden_size, hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.output(functional.gelu(self.up(x))))


class Block(nn.Module):
    """One transformer layer: x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, model: ModelSection) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(model.hidden_size)
        self.attention = Attention(model)
        self.mlp_norm = nn.LayerNorm(model.hidden_size)
        self.mlp = Mlp(model.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + cast(Tensor, self.mlp(self.mlp_norm(x)))


class Embeddings(nn.Module):
    """Sum of learned token and position embeddings."""

    def __init__(self, model: ModelSection) -> None:
        super().__init__()
        self.token = nn.Embedding(model.vocab_size, model.hidden_size)
        self.position = nn.Embedding(model.sequence_length, model.hidden_size)

    def forward(self, tokens: Tensor) -> Tensor:
        return cast(Tensor, self.token(tokens) + self.position.weight[: tokens.shape[1]])


class Head(nn.Module):
    """Final norm and the projection to the vocabulary."""

    def __init__(self, model: ModelSection) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(model.hidden_size)
        self.vocabulary = Linear(model.hidden_size, model.vocab_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.vocabulary(self.norm(x)))


class GPTStage(nn.Module):
    """Consecutive layers of a GPT, with the embeddings before layer 0 and the head after the last layer.

    Parameters are named by their layer in the whole model (`blocks.3.mlp.up.weight`), independent of the stage.
    Creating a stage allocates only its own weights; raises what torch raises when these do not fit into memory.
    """

    def __init__(self, model: ModelSection, layers: Sequence[int], seed: int, device: torch.device) -> None:
        super().__init__()
        self.prefix_length = model.prefix_length
        with torch.device("meta"):  # avoids drawing torch's initial values, which are overwritten anyway
            self.embeddings = Embeddings(model) if layers[0] == 0 else None
            self.blocks = nn.ModuleDict({str(layer): Block(model) for layer in layers})
            self.head = Head(model) if layers[-1] == model.num_layers - 1 else None
        self.to_empty(device=device)
        if self.embeddings is not None:
            _initialise(self.embeddings, generator(seed, "embeddings"), model.num_layers)
        for layer, block in self.blocks.items():
            _initialise(block, generator(seed, "layer", int(layer)), model.num_layers)
        if self.head is not None:
            _initialise(self.head, generator(seed, "head"), model.num_layers)

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
        """Return activations (batch, sequence, hidden), or on the last stage the mean loss over all tokens.

        With a prefix the mean covers only the tokens after it; the first of these is predicted by the prefix's last
        token. `x` is token ids (batch, sequence) on the first stage, else activations (batch, sequence, hidden). The
        last stage requires `targets` (batch, sequence) and raises ValueError without them; its loss is an fp32 scalar
        for every precision.
        """
        if self.embeddings is not None:
            x = self.embeddings(x)
        if torch.is_autocast_enabled(x.device.type):
            # The residual stream, and with it every transfer between stages, must have the compute precision in every
            # layout; without this cast it would start in fp32.
            x = x.to(torch.get_autocast_dtype(x.device.type))
        for block in self.blocks.values():
            x = block(x)
        if self.head is None:
            return x
        if targets is None:
            raise ValueError("the last stage computes the loss and needs targets")
        first = max(self.prefix_length - 1, 0)
        x, targets = x[:, first:], targets[:, first:]
        logits = self.head(x).float()
        return functional.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1))


def _initialise(module: nn.Module, numbers: torch.Generator, num_layers: int) -> None:
    parameters = dict(module.named_parameters())
    with torch.no_grad():
        for name, weight in initial_weights(module, numbers, num_layers):
            parameters[name].copy_(weight)


def initial_weights(module: nn.Module, numbers: torch.Generator, num_layers: int) -> Iterator[tuple[str, Tensor]]:
    """Yield (name, weight) as in GPT-2: normal, smaller for layers that add to the residual stream; biases 0, norms 1.

    Only names and shapes of the module's parameters are used. Weights are drawn on the CPU for every device, so that
    GPU and CPU start with the same weights. Source: Radford et al. 2019, GPT-2, section 2.3.
    """
    for name, parameter in module.named_parameters():
        if name.endswith("bias"):
            yield name, torch.zeros(parameter.shape)
        elif "norm" in name:
            yield name, torch.ones(parameter.shape)
        else:
            std = INIT_STD / math.sqrt(2 * num_layers) if ".output." in name else INIT_STD
            yield name, torch.empty(parameter.shape).normal_(0.0, std, generator=numbers)


def num_parameters(model: ModelSection) -> int:
    """Return the number of parameters of the whole model: l(12h² + 13h) in the layers plus (2V + s)h + 2h.

    Source: Narayanan et al. 2021 (SC21), equation 2, plus the untied head (V·h) and the final norm (2h).
    """
    h, vocabulary = model.hidden_size, model.vocab_size
    return model.num_layers * (12 * h * h + 13 * h) + (2 * vocabulary + model.sequence_length) * h + 2 * h
