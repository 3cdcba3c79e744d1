"""Known models with their sizes, from the configurations that their authors published."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd, log2
from typing import Any, NamedTuple

from .model import Model


class PublishedRun(NamedTuple):
    """What the authors of a model printed of one training of it."""

    by: str
    gpu: str
    gpus: int
    tflops_per_gpu: float
    layout: tuple[tuple[str, int | str | bool], ...]
    """Fields of a request with their values."""
    source: str


@dataclass(frozen=True)
class Preset:
    """A model with its name and the source of its sizes."""

    name: str
    model: Model
    source: str
    tokens_billion: float | None = None
    """Tokens on which its authors trained it (10^9); None if they do not state it."""
    batch_tokens: float | None = None
    """Tokens of an iteration of that training, the largest if they were increased; None if not stated."""
    precision: str = "bf16"
    published: tuple[PublishedRun, ...] = ()


def _llama(layers: int, hidden: int, heads: int, ffn: int, *, tied: bool = False) -> Model:
    return Model(
        layers, hidden, heads, 8192, 128_256, 8, ffn,
        is_gated=True, has_tied_embeddings=tied, has_positions=False, has_dropout=False,
    )  # fmt: skip


def _qwen(layers: int, hidden: int, heads: int, kv: int, ffn: int, experts: int = 1, chosen: int = 1) -> Model:
    return Model(
        layers, hidden, heads, 4096, 151_936, kv, ffn, is_gated=True, num_experts=experts, experts_per_token=chosen,
        has_tied_embeddings=False, has_positions=False, head_dim=128, has_dropout=False,
    )  # fmt: skip


def _gpt_oss(layers: int, experts: int) -> Model:
    return Model(
        layers, 2880, 64, 4096, 201_088, 8, 2880, is_gated=True, num_experts=experts, experts_per_token=4,
        has_tied_embeddings=False, has_positions=False, head_dim=64, sliding_window=128, has_dropout=False,
    )  # fmt: skip


_DEEPSEEK_V3 = Model(
    61, 7168, 128, 4096, 129_280, None, 2048, is_gated=True, num_experts=256, experts_per_token=8,
    has_tied_embeddings=False, has_positions=False, head_dim=128, attention="mla", q_lora_rank=1536, kv_lora_rank=512,
    shared_experts=1, dense_layers=3, dense_ffn_size=18_432, has_dropout=False, expert_groups=8, groups_per_token=4,
)  # fmt: skip
_KIMI_K2 = replace(
    _DEEPSEEK_V3, num_heads=64, vocab_size=163_840, num_experts=384, dense_layers=1, expert_groups=1,
    groups_per_token=None,
)  # fmt: skip
_MIXTRAL = Model(
    32, 4096, 32, 4096, 32_000, 8, 14_336, is_gated=True, num_experts=8, experts_per_token=2,
    has_tied_embeddings=False, has_positions=False, has_dropout=False,
)  # fmt: skip
_HERD = "The Llama 3 Herd of Models, 2024, table 3"
_HERD_RUNS = "The Llama 3 Herd of Models, 2024, table 4"
_META: tuple[tuple[str, int | str | bool], ...] = (
    ("tensor_parallel", 8), ("pipeline_parallel", 16), ("context_parallel", 1), ("expert_parallel", 1),
    ("micro_batch", 1), ("zero", 1), ("recompute", "none"), ("sequence_parallel", True),
    ("schedule", "interleaved-1f1b"), ("chunks", 8),
)  # fmt: skip
_QWEN3 = "Qwen3 technical report, 2025, tables 1 and 2"

PRESETS: tuple[Preset, ...] = (
    Preset(
        "GPT-3 175B",
        Model(96, 12_288, 96, 2048, 51_200),
        "Brown et al. 2020, table 2.1; vocabulary of Megatron-LM",
        tokens_billion=300,
        batch_tokens=3.2e6,
    ),
    Preset(
        "BERT-large",
        Model(24, 1024, 16, 512, 30_522, is_causal=False),
        "Devlin et al. 2019, section 3",
        tokens_billion=131,
        batch_tokens=131_072,
    ),
    Preset(
        "Llama 3.2 1B", _llama(16, 2048, 32, 8192, tied=True), "Meta, Llama 3.2 model card, 2024", tokens_billion=9000
    ),
    Preset("Llama 3 8B", _llama(32, 4096, 32, 14_336), _HERD, tokens_billion=15000),
    Preset("Llama 3 70B", _llama(80, 8192, 64, 28_672), _HERD, tokens_billion=15000),
    Preset(
        "Llama 3.1 405B",
        _llama(126, 16_384, 128, 53_248),
        _HERD,
        tokens_billion=15600,
        batch_tokens=2048 * 8192,
        published=(
            PublishedRun("Meta", "H100 SXM", 8192, 430, _META, _HERD_RUNS),
            PublishedRun("Meta", "H100 SXM", 16_384, 400, _META, _HERD_RUNS),
        ),
    ),
    Preset("Qwen3 8B", _qwen(36, 4096, 32, 8, 12_288), _QWEN3, tokens_billion=36000),
    Preset("Qwen3 32B", _qwen(64, 5120, 64, 8, 25_600), _QWEN3, tokens_billion=36000),
    Preset("Qwen3 30B-A3B", _qwen(48, 2048, 32, 4, 768, 128, 8), _QWEN3, tokens_billion=36000),
    Preset("Qwen3 235B-A22B", _qwen(94, 4096, 64, 4, 1536, 128, 8), _QWEN3, tokens_billion=36000),
    Preset(
        "DeepSeek-V3",
        _DEEPSEEK_V3,
        "DeepSeek-V3 technical report, 2024, section 4.2",
        tokens_billion=14800,
        batch_tokens=15_360 * 4096,
        precision="fp8",
    ),
    Preset(
        "Kimi K2",
        _KIMI_K2,
        "Kimi K2 technical report, 2025, table 2",
        tokens_billion=15500,
        batch_tokens=67e6,
    ),
    Preset("GPT-OSS 20B", _gpt_oss(24, 32), "OpenAI, gpt-oss model card, 2025, table 1"),
    Preset("GPT-OSS 120B", _gpt_oss(36, 128), "OpenAI, gpt-oss model card, 2025, table 1"),
    Preset("Mixtral 8x7B", _MIXTRAL, "Jiang et al. 2024, table 1"),
    Preset(
        "Mixtral 8x22B",
        replace(_MIXTRAL, num_layers=56, hidden_size=6144, num_heads=48, ffn_hidden_size=16_384, vocab_size=32_768),
        "Mistral AI, config.json of Mixtral-8x22B-v0.1, 2024",
    ),
)


_TOKENS_PER_PARAMETER = 20
"""Compute-optimal tokens (Hoffmann et al. 2022), for models whose authors do not state theirs."""
_DAYS = 60
"""Deadline of the question about a known model."""
_USUAL_RATE = 350e12
"""FLOP/s of an H100 in an ordinary training, for the number of nodes of that question."""
_TOKENS_A_STEP = ((1e9, 0.5e6), (20e9, 4e6), (float("inf"), 16e6))
"""Most active parameters -> usual tokens of an iteration (The Llama 3 Herd of Models, 2024, section 3.4)."""


def usual_question(entry: Preset, gpus: int = 0) -> dict[str, Any]:
    """Return the question about a known model that states at most a number of GPUs: H100s for 60 days, no layout.

    Otherwise the number of nodes is a power of two with which an ordinary training takes at most 60 days.
    """
    model = entry.model
    tokens_billion = entry.tokens_billion or round(_TOKENS_PER_PARAMETER * model.parameters / 1e9)
    place = placed_on(gpus or 8 * _usual_nodes(model, tokens_billion))
    return {
        **({"model": entry.name} if preset(entry.name) else fields_of(model)),
        "gpu": "H100 SXM",
        **place,
        "global_batch": _batch(entry, place["nodes"] * place["gpus_per_node"]),
        "precision": entry.precision,
        "tokens_billion": tokens_billion,
        "wanted_days": _DAYS,
    }


def placed_on(gpus: int) -> dict[str, int]:
    """Return a number of GPUs as nodes of a request: of eight where that divides them."""
    each = gcd(gpus, 8) if gpus > 8 else gpus
    return {"nodes": gpus // each, "gpus_per_node": each}


def _batch(entry: Preset, gpus: int) -> int:
    """Return the sequences of an iteration: those of the training, otherwise a usual number, one for eight GPUs."""
    length = entry.model.sequence_length
    if entry.batch_tokens:
        # A multiple of a power of two, so that layouts divide it: 1,536 sequences of 2,048 are 3.2 M tokens.
        sequences = entry.batch_tokens / length
        unit = 1 << max(0, int(log2(sequences)) - 3)
        return max(1, round(sequences / unit) * unit)
    step = next(tokens for most, tokens in _TOKENS_A_STEP if entry.model.active_parameters <= most)
    return int(max(gpus // 8, 2 ** round(log2(step / length))))


def _usual_nodes(model: Model, tokens_billion: float) -> int:
    gpus = 6 * tokens_billion * 1e9 * model.active_parameters / (_USUAL_RATE * _DAYS * 86_400)
    held = 18 * model.parameters / 40e9
    nodes: int = next(size for size in (2**power for power in range(13)) if size == 4096 or 8 * size >= max(gpus, held))
    return nodes


def preset(name: str) -> Preset | None:
    """Return the preset of that name, ignoring case, spaces and hyphens; None if there is none."""
    plain = _plain(name)
    return next((candidate for candidate in PRESETS if _plain(candidate.name) == plain), None)


def _plain(name: str) -> str:
    return name.lower().replace(" ", "").replace("-", "").replace("llama3.1", "llama3")


def fields_of(model: Model) -> dict[str, Any]:
    """Return a model as fields of a request."""
    return {
        "layers": model.num_layers,
        "hidden": model.hidden_size,
        "heads": model.num_heads,
        "kv_heads": model.num_kv_heads,
        "ffn": model.ffn_hidden_size,
        "mlp": "gated" if model.is_gated else "plain",
        "experts": model.num_experts,
        "experts_per_token": model.experts_per_token,
        "expert_groups": model.expert_groups,
        "groups_per_token": model.groups_per_token,
        "shared_experts": model.shared_experts,
        "dense_layers": model.dense_layers,
        "dense_ffn": model.dense_ffn_size,
        "head_dim": model.head_dim,
        "mla": model.attention == "mla",
        "q_lora_rank": model.q_lora_rank,
        "kv_lora_rank": model.kv_lora_rank,
        "rope_head_dim": model.rope_head_dim,
        "window": model.sliding_window,
        "windowed_share": model.windowed_share,
        "tied_embeddings": model.has_tied_embeddings,
        "positions": "learned" if model.has_positions else "rotary",
        "dropout": model.has_dropout,
        "causal": model.is_causal,
        "sequence": model.sequence_length,
        "vocabulary": model.vocab_size,
    }
