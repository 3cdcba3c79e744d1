"""Known models with their sizes, from the configurations that their authors published."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from .model import Model


@dataclass(frozen=True)
class Preset:
    """A model with its name and the source of its sizes."""

    name: str
    model: Model
    source: str


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
    shared_experts=1, dense_layers=3, dense_ffn_size=18_432, has_dropout=False,
)  # fmt: skip
_KIMI_K2 = replace(_DEEPSEEK_V3, num_heads=64, vocab_size=163_840, num_experts=384, dense_layers=1)
_MIXTRAL = Model(
    32, 4096, 32, 4096, 32_000, 8, 14_336, is_gated=True, num_experts=8, experts_per_token=2,
    has_tied_embeddings=False, has_positions=False, has_dropout=False,
)  # fmt: skip
_HERD = "The Llama 3 Herd of Models, 2024, table 3"
_QWEN3 = "Qwen3 technical report, 2025, tables 1 and 2"

PRESETS: tuple[Preset, ...] = (
    Preset(
        "GPT-3 175B", Model(96, 12_288, 96, 2048, 51_200), "Brown et al. 2020, table 2.1; vocabulary of Megatron-LM"
    ),
    Preset("BERT-large", Model(24, 1024, 16, 512, 30_522, is_causal=False), "Devlin et al. 2019, section 3"),
    Preset("Llama 3.2 1B", _llama(16, 2048, 32, 8192, tied=True), "Meta, Llama 3.2 model card, 2024"),
    Preset("Llama 3 8B", _llama(32, 4096, 32, 14_336), _HERD),
    Preset("Llama 3 70B", _llama(80, 8192, 64, 28_672), _HERD),
    Preset("Llama 3.1 405B", _llama(126, 16_384, 128, 53_248), _HERD),
    Preset("Qwen3 8B", _qwen(36, 4096, 32, 8, 12_288), _QWEN3),
    Preset("Qwen3 32B", _qwen(64, 5120, 64, 8, 25_600), _QWEN3),
    Preset("Qwen3 30B-A3B", _qwen(48, 2048, 32, 4, 768, 128, 8), _QWEN3),
    Preset("Qwen3 235B-A22B", _qwen(94, 4096, 64, 4, 1536, 128, 8), _QWEN3),
    Preset("DeepSeek-V3", _DEEPSEEK_V3, "DeepSeek-V3 technical report, 2024, section 4.2"),
    Preset("Kimi K2", _KIMI_K2, "Kimi K2 technical report, 2025, table 2"),
    Preset("GPT-OSS 20B", _gpt_oss(24, 32), "OpenAI, gpt-oss model card, 2025, table 1"),
    Preset("GPT-OSS 120B", _gpt_oss(36, 128), "OpenAI, gpt-oss model card, 2025, table 1"),
    Preset("Mixtral 8x7B", _MIXTRAL, "Jiang et al. 2024, table 1"),
    Preset(
        "Mixtral 8x22B",
        replace(_MIXTRAL, num_layers=56, hidden_size=6144, num_heads=48, ffn_hidden_size=16_384, vocab_size=32_768),
        "Mistral AI, config.json of Mixtral-8x22B-v0.1, 2024",
    ),
)


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
