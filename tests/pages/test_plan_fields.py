"""Each field of a planning question has an effect, and the same one on the page, over HTTP and on the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client
from django.urls import reverse

from parlab.pages.forms.plan_fields import CHOSEN
from parlab.planner import predict_job
from parlab.planner.job.cluster import device
from parlab.planner.requests.request import PlanRequest
from parlab.planner.search.budget import budget

BASE: dict[str, Any] = {
    "layers": 24, "hidden": 2048, "heads": 16, "sequence": 4096, "vocabulary": 32_000, "global_batch": 256,
    "micro_batch": 1, "recompute": "full", "tensor_parallel": 2, "pipeline_parallel": 4, "nodes": 16,
    "gpu": "H100 SXM", "zero": 1, "network_gbit_s": 3200,
}  # fmt: skip
BASE_MODEL = {"gpu": "H100 SXM", "recompute": "none", "pipeline_parallel": 1}
LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "vocab_size": 128256,
}  # fmt: skip
MOE: dict[str, Any] = BASE | {"experts": 16, "experts_per_token": 2, "expert_parallel": 8, "ffn": 1024}
MLA: dict[str, Any] = BASE | {"mla": True, "head_dim": 128}
FSDP: dict[str, Any] = BASE | {"tensor_parallel": 1, "pipeline_parallel": 1, "zero": 3, "global_batch": 512}
GATED: dict[str, Any] = BASE | {"mlp": "gated", "recompute": "none"}
FP8: dict[str, Any] = BASE | {"precision": "fp8", "schedule": "interleaved-1f1b", "chunks": 3}
CHANGES: dict[str, tuple[dict[str, Any], Any]] = {
    "model": ({"gpu": "H100 SXM", "recompute": "none", "pipeline_parallel": 1}, "Llama 3 8B"),
    "huggingface": (BASE_MODEL, LLAMA),
    "layers": (BASE, 32), "hidden": (BASE, 4096), "heads": (BASE, 32), "kv_heads": (BASE, 4), "ffn": (BASE, 4096),
    "mlp": (BASE, "gated"), "experts": (BASE | {"experts": 4, "experts_per_token": 2}, 16),
    "experts_per_token": (MOE, 4),
    "shared_experts": (MOE, 1), "dense_layers": (MOE, 2), "dense_ffn": (MOE | {"dense_layers": 4}, 8192),
    "head_dim": (BASE, 64), "mla": (BASE, True), "q_lora_rank": (MLA, 0), "kv_lora_rank": (MLA, 256),
    "rope_head_dim": (MLA, 32), "window": (BASE, 256), "windowed_share": (BASE | {"window": 256}, 0.9),
    "tied_embeddings": (BASE | {"pipeline_parallel": 1}, False), "positions": (BASE, "rotary"),
    "dropout": (BASE | {"recompute": "none"}, False), "causal": (BASE, False), "sequence": (BASE, 8192),
    "vocabulary": (BASE, 64_000), "attention": (BASE, "plain"), "global_batch": (BASE, 512), "micro_batch": (BASE, 2),
    "precision": (BASE, "fp8"), "recompute": (BASE, "none"), "recomputed_layers": (BASE, 2),
    "offload_activations": (BASE | {"recompute": "none"}, True), "tensor_parallel": (BASE, 4),
    "sequence_parallel": (BASE, True), "pipeline_parallel": (BASE, 8), "schedule": (BASE, "zb-v"),
    "chunks": (FP8, 2), "first_stage_layers": (BASE, 3), "last_stage_layers": (BASE, 2), "zero": (BASE, 2),
    "offload": (BASE, "optimizer"), "shard_ranks": (FSDP, 8), "reshard_after_forward": (FSDP, False),
    "context_parallel": (BASE, 2), "context_exchange": (BASE | {"context_parallel": 2}, "all-gather"),
    "expert_groups": (MOE | {"groups_per_token": 1}, 4), "groups_per_token": (MOE | {"expert_groups": 4}, 1),
    "expert_dispatcher": (MOE, "allgather"), "expert_imbalance": (MOE, 1.5),
    "grouped_products": (MOE | {"hidden": 512, "heads": 8}, "separate"),
    "expert_parallel": (MOE, 4), "expert_tensor_parallel": (MOE, 2), "overlap_gradients": (BASE, False),
    "overlap_tensor": (BASE, True), "overlap_experts": (MOE, True), "overlap_pipeline": (FP8, False),
    "cuda_graphs": (BASE | {"hidden": 512, "heads": 8}, True), "gpu": (BASE, "B200"), "memory_gib": (BASE, 40.0),
    "nodes": (BASE, 32), "gpus_per_node": (BASE, 4), "nvlink_domain": (BASE | {"tensor_parallel": 16}, 72),
    "network_gbit_s": (BASE | {"overlap_gradients": False}, 400.0),
    "link_gb_s": (BASE, 100.0),
    "oversubscription": (BASE | {"overlap_gradients": False}, 4.0),
    "rail_optimized": (BASE | {"overlap_gradients": False, "oversubscription": 4.0}, True),
    "code_base": (GATED, "NeMo AutoModel"),
    "release": (GATED | {"code_base": "Megatron-Bridge"}, "26.06"),
    "optimizer_states": (BASE, "bf16"), "recompute_activation": (GATED | {"code_base": "Megatron-Core"}, True),
    "compressed_experts": (MOE | {"recompute": "none"}, True), "expandable_segments": (BASE, True),
    "fused_norms": (GATED | {"gpu": "A100 SXM4 80 GB"}, True),
    "gathered_logits": (GATED | {"pipeline_parallel": 1}, True),
    "tokens_billion": (BASE, 1.0), "price": (BASE, 2.0), "wanted_days": (BASE, 10.0), "wanted_cost": (BASE, 1e6),
}  # fmt: skip


def outcome(fields: dict[str, Any]) -> tuple[Any, ...]:
    question = PlanRequest.model_validate(fields)
    prediction = predict_job(question.job(), question.cluster(device(question.gpu)))
    cost = budget(prediction, question.tokens_billion * 1e9, question.price)
    parts, memory = vars(prediction.parts), vars(prediction.memory)
    capacity = prediction.cluster.device.memory_bytes
    return (
        *parts.values(),
        *memory.values(),
        capacity,
        cost.days,
        cost.cost,
        question.wanted_days,
        question.wanted_cost,
    )


def test_the_walk_covers_every_field() -> None:
    assert CHANGES.keys() == PlanRequest.model_fields.keys()


@pytest.mark.parametrize("name", CHANGES)
def test_every_field_changes_the_answer(name: str) -> None:
    base, value = CHANGES[name]
    assert outcome(base | {name: value}) != outcome(base)


@pytest.mark.usefixtures("catalogue")
def test_the_form_has_one_control_for_every_field(viewer: Client) -> None:
    page = viewer.get(reverse("plan"), BASE).content.decode()
    start = page.index('id="plan"')
    form = page[start : page.index("</form>", start)]
    controls = re.findall(r'<(?:input|select)[^>]* name="([a-z_]+)"', form)
    assert sorted(controls) == sorted(PlanRequest.model_fields.keys() - CHOSEN)
    assert 'name="config"' in page
    assert 'action="/plan/model/"' in page


@pytest.mark.usefixtures("catalogue")
def test_a_pasted_config_is_planned_in_its_best_layout(viewer: Client) -> None:
    reply = viewer.post("/plan/config/", {"config": json.dumps(LLAMA | {"num_future_gates": 3})}, follow=True)
    text = reply.content.decode()
    assert 'name="kv_heads" value="8"' in text
    assert "config.json of llama; not read: num_future_gates; they may change the model." in text
    assert "does not fit" not in text
    refused = viewer.post("/plan/config/", {"config": '{"model_type": "t5"}'}, follow=True).content.decode()
    assert "model_type t5 is not supported" in refused


ODD: list[dict[str, Any]] = [
    MOE | {"shared_experts": 1, "dense_layers": 2, "dense_ffn": 4096, "kv_heads": 4, "mlp": "gated", "window": 512}
    | {"windowed_share": 0.75, "causal": False, "first_stage_layers": 5, "last_stage_layers": 5, "dropout": False}
    | {"expert_tensor_parallel": 2, "overlap_experts": True, "offload": "optimizer", "oversubscription": 2.5},
    MLA | {"q_lora_rank": 768, "kv_lora_rank": 256, "rope_head_dim": 32, "precision": "mxfp8", "recompute": "selective"}
    | {"recomputed_layers": 2, "offload_activations": True, "schedule": "dualpipe", "context_parallel": 2}
    | {"context_exchange": "all-gather", "rail_optimized": True, "memory_gib": 60.0, "tied_embeddings": False},
    FSDP | {"shard_ranks": 8, "reshard_after_forward": False, "positions": "rotary", "attention": "plain"},
]  # fmt: skip


@pytest.mark.usefixtures("catalogue")
@pytest.mark.parametrize("fields", [*(pytest.param(each, marks=pytest.mark.slow) for each in ODD[:2]), ODD[2]])
def test_page_api_and_command_predict_what_the_planner_does(
    fields: dict[str, Any], viewer: Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    question = PlanRequest.model_validate(fields)
    expected = predict_job(question.job(), question.cluster(device(question.gpu)))
    over_http = viewer.post("/api/plan/", fields, content_type="application/json").json()
    path = tmp_path / "question.json"
    path.write_text(json.dumps(fields))
    call_command("plan", question=str(path))
    printed = json.loads(capsys.readouterr().out)
    page = viewer.get(reverse("plan"), fields)
    for answer in (over_http, printed):
        assert answer["iteration_s"] == pytest.approx(expected.iteration_s)
        assert answer["memory"]["total_bytes"] == pytest.approx(expected.memory_bytes)
    assert page.context["prediction"].iteration_s == pytest.approx(expected.iteration_s)
    assert page.context["prediction"].memory_bytes == pytest.approx(expected.memory_bytes)
