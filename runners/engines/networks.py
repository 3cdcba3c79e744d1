"""A whole network in one module, made from a configuration: parlab's own, or Hugging Face's with random weights."""

from __future__ import annotations

import importlib
from typing import Any, cast

import torch
from torch import Tensor, nn

from runners.config import ConfigError, Problem, RunConfig
from runners.models.gpt import GPTStage


class HuggingFaceLoss(nn.Module):
    """A Hugging Face model that takes (tokens, targets) and returns the mean loss over all tokens.

    Their models shift labels by themselves, or not, by kind; here the target of a token is what the caller says.
    """

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        logits = cast(Tensor, self.inner(input_ids=tokens).logits).float()
        return nn.functional.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1))


def build(config: RunConfig, device: torch.device) -> nn.Module:
    """Make the network of a configuration: forward(tokens, targets) is the mean loss over the tokens.

    Weights depend on the seed alone, so they are the same on every rank. Raises ConfigError when transformers is
    needed and missing.
    """
    if config.model.implementation == "parlab":
        return GPTStage(config.model, range(config.model.num_layers), config.train.seed, device)
    return HuggingFaceLoss(hugging_face_model(config).to(device))


def hugging_face_model(config: RunConfig) -> nn.Module:
    """Make GPT-2 or BERT of Hugging Face with random weights and without dropout; nothing is downloaded."""
    transformers = import_transformers(config)
    model = config.model
    sizes: dict[str, Any] = {"vocab_size": model.vocab_size, "use_cache": False}
    if model.kind == "gpt":
        kind = transformers.GPT2LMHeadModel
        settings = transformers.GPT2Config(
            **sizes,
            n_layer=model.num_layers,
            n_embd=model.hidden_size,
            n_head=model.num_attention_heads,
            n_positions=model.sequence_length,
            **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
            bos_token_id=0,
            eos_token_id=0,
        )
    else:
        kind = transformers.BertForMaskedLM
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
    """Import transformers, or raise ConfigError saying what needs it."""
    try:
        return importlib.import_module("transformers")
    except ImportError as error:
        message = (
            f"models of Hugging Face need transformers, which cannot be imported: {error};"
            " install runners/requirements.txt on the node, or use implementation parlab"
        )
        raise ConfigError([Problem("model.implementation", config.model.implementation, message)]) from error
