"""A whole network in one module for a configuration: parlab's own, or Hugging Face's with random weights."""

from __future__ import annotations

import importlib
from typing import Any, cast

import torch
from torch import Tensor, nn

from runners.config import ConfigError, Problem, RunConfig
from runners.models.gpt import GPTStage
from runners.models.megatron import Inputs, Losses, MegatronStage

NO_LABEL = -100
"""Label that torch's cross entropy ignores."""


class BertLoss(nn.Module):
    """parlab's BERT: takes the result of make_arguments and returns the sum of the mean losses of its two heads."""

    def __init__(self, config: RunConfig, device: torch.device) -> None:
        super().__init__()
        self.whole = MegatronStage(config.model, range(config.model.num_layers), config.train.seed, device)

    def forward(
        self, tokens: Tensor, targets: Tensor, segments: Tensor, positions: Tensor, next_sentence: Tensor
    ) -> Tensor:
        return cast(Losses, self.whole(None, Inputs(tokens, targets, segments, positions, next_sentence))).total


class HuggingFaceBertLoss(nn.Module):
    """Hugging Face's BERT with the same arguments; the loss is Hugging Face's."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(
        self, tokens: Tensor, targets: Tensor, segments: Tensor, positions: Tensor, next_sentence: Tensor
    ) -> Tensor:
        labels = labels_at(tokens, positions, targets)
        return cast(Tensor, self.inner(tokens, None, segments, labels=labels, next_sentence_label=next_sentence).loss)


def labels_at(tokens: Tensor, positions: Tensor, targets: Tensor) -> Tensor:
    """Return labels (batch, sequence): the targets at their positions, NO_LABEL elsewhere.

    `tokens` is (batch, sequence), `positions` and `targets` are (batch, masked); the batch dimension may be missing.
    """
    return torch.full_like(tokens, NO_LABEL).scatter(-1, positions, targets)


class HuggingFaceLoss(nn.Module):
    """A Hugging Face model that takes (tokens, targets), both (batch, sequence), and returns the mean loss.

    Hugging Face's own loss shifts labels for some models and not for others; here the caller's targets are used as is.
    """

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        logits = cast(Tensor, self.inner(input_ids=tokens).logits).float()
        return nn.functional.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1))


def build(config: RunConfig, device: torch.device) -> nn.Module:
    """Create the network of a configuration; forward(*make_arguments(...)) returns the mean loss.

    Weights depend on train.seed only, so they are the same on every rank. Raises ConfigError if transformers is
    required but not installed.
    """
    is_bert = config.model.kind == "bert"
    if config.model.implementation == "huggingface":
        inner = hugging_face_model(config).to(device)
        return HuggingFaceBertLoss(inner) if is_bert else HuggingFaceLoss(inner)
    if is_bert:
        return BertLoss(config, device)
    return GPTStage(config.model, range(config.model.num_layers), config.train.seed, device)


def hugging_face_model(config: RunConfig) -> nn.Module:
    """Create GPT-2, or BERT with both heads, with random weights and without dropout; nothing is downloaded."""
    transformers = import_transformers(config)
    model = config.model
    sizes: dict[str, Any] = {"vocab_size": model.vocab_size}
    if model.kind == "gpt":
        kind = transformers.GPT2LMHeadModel
        settings = transformers.GPT2Config(
            **sizes,
            use_cache=False,
            n_layer=model.num_layers,
            n_embd=model.hidden_size,
            n_head=model.num_attention_heads,
            n_positions=model.sequence_length,
            **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
            bos_token_id=0,
            eos_token_id=0,
        )
    else:
        kind = transformers.BertForPreTraining
        settings = transformers.BertConfig(
            **sizes,
            num_hidden_layers=model.num_layers,
            hidden_size=model.hidden_size,
            intermediate_size=4 * model.hidden_size,
            num_attention_heads=model.num_attention_heads,
            max_position_embeddings=model.sequence_length,
            **dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0),
        )
    torch.manual_seed(config.train.seed)
    return cast(nn.Module, kind(settings))


def import_transformers(config: RunConfig) -> Any:
    """Import transformers; raise ConfigError if that fails."""
    try:
        return importlib.import_module("transformers")
    except ImportError as error:
        message = (
            f"Hugging Face models require transformers, but importing it failed: {error};"
            " pip install 'parlab[node]' on the node, or use implementation parlab"
        )
        raise ConfigError([Problem("model.implementation", config.model.implementation, message)]) from error
