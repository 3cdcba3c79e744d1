"""One strict schema for the page, the API, `manage.py plan` and rows: the same question has the same answer."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from pydantic import ValidationError

from parlab.planner import predict_job
from parlab.planner.job.cluster import device
from parlab.planner.job.huggingface import model_of
from parlab.planner.job.presets import preset
from parlab.planner.publications import rows
from parlab.planner.requests.answer import outline
from parlab.planner.requests.fitting import fitting_defaults, read_question
from parlab.planner.requests.refusals import refusals
from parlab.planner.requests.request import PlanRequest

LLAMA = {
    "layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336, "mlp": "gated", "vocabulary": 128256,
    "sequence": 8192, "global_batch": 128, "tensor_parallel": 2, "sequence_parallel": True, "pipeline_parallel": 4,
    "schedule": "interleaved-1f1b", "chunks": 2, "recompute": "none", "zero": 1, "nodes": 4, "network_gbit_s": 3200,
}  # fmt: skip
ROW: dict[str, Any] = {
    "model": {
        "layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336, "mlp": "gated", "vocab": 128256,
        "seq": 8192,
    },
    "parallel": {
        "tp": 2, "pp": 4, "vp": 2, "schedule": "interleaved", "mbs": 1, "gbs": 128, "recompute": "none", "zero": 1,
        "sequence_parallel": True, "attention": "flash",
    },
    "hardware": {"count": 32, "node": 8, "inter_node": "3200Gbps"},
}  # fmt: skip


@pytest.mark.parametrize("precision", ["bf16", "fp8"])
@pytest.mark.parametrize(
    ("gpu", "name"), [("A100-80GB", "A100 SXM4 80 GB"), ("H100-80GB", "H100 SXM"), ("GB200", "GB200")]
)
def test_a_row_and_a_question_about_one_job_have_the_same_prediction(gpu: str, name: str, precision: str) -> None:
    if gpu.startswith("A100") and precision == "fp8":
        precision = "fp16"
    question = PlanRequest.model_validate(LLAMA | {"gpu": name, "precision": precision})
    asked = predict_job(question.job(), question.cluster(device(name)))
    parallel = ROW["parallel"] | {"precision": precision}
    row = rows.read(ROW | {"parallel": parallel, "hardware": ROW["hardware"] | {"gpu": gpu}})
    read = predict_job(row.job, row.cluster)
    assert asked.iteration_s == pytest.approx(read.iteration_s)
    assert asked.memory_bytes == pytest.approx(read.memory_bytes)


def test_an_unknown_field_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ValidationError) as error:
        PlanRequest.model_validate({"kv_head": 8, "context_paralel": 2})
    messages = [refusal.message for refusal in refusals(error.value)]
    assert any("unknown field kv_head; did you mean kv_heads?" in message for message in messages)
    assert any("unknown field context_paralel; did you mean context_parallel?" in message for message in messages)


def test_all_faults_of_a_question_are_named_at_once() -> None:
    with pytest.raises(ValidationError) as error:
        PlanRequest.model_validate({"kv_heads": 7, "experts": 8, "expert_parallel": 3, "tensor_parallel": 5})
    problems = {refusal.field: refusal.message for refusal in refusals(error.value)}
    for field, value in (("kv_heads", 7), ("expert_parallel", 3), ("tensor_parallel", 5)):
        assert problems[field].startswith(f"{field} {value} ")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"chunks": 4}, "chunks 4 contradicts schedule 1f1b; use interleaved-1f1b, or 1 chunk"),
        ({"recompute": "none", "recomputed_layers": 2}, "recomputed_layers 2 contradicts recompute none"),
        ({"recomputed_layers": 97}, "recomputed_layers 97 is more than layers 96; use at most that"),
        ({"shard_ranks": 3}, "shard_ranks 3 does not divide the 4 ranks of the same weights; use a divisor"),
        ({"nvlink_domain": 2}, "nvlink_domain 2 is less than gpus_per_node 8; use at least that"),
        ({"release": "26.04"}, "release 26.04 has no effect without code_base; state the trainer"),
        ({"link_gb_s": 1e6}, "link_gb_s 1000000.0 is invalid: use 100000.0 or less"),
        ({"network_gbit_s": 1e7}, "network_gbit_s 10000000.0 is invalid: use 1000000.0 or less"),
        ({"layers": True}, "layers True is invalid: use a number"),
        ({"layers": 1e30}, "layers 1e+30 is invalid: use a smaller number"),
        ({"causal": "maybe"}, "causal maybe is invalid: use true or false"),
        ({"code_base": 5}, "code_base 5 is invalid: use 'Megatron-Bridge',"),
        ({"gpu": []}, "gpu [] is invalid: use a text"),
        ({"gpu": "x" * 81}, "is invalid: use 80 characters or fewer"),
        ({"huggingface": "https://example.org/config.json"}, "is not a config.json; paste its whole text"),
        ({"huggingface": '{"a":' * 5000 + "1" + "}" * 5000}, "huggingface is not valid JSON: maximum recursion depth"),
    ],
)
def test_a_value_that_would_have_no_effect_is_refused_with_a_remedy(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as error:
        PlanRequest.model_validate(fields)
    assert [message in refusal.message for refusal in refusals(error.value)] == [True]


def test_a_question_lists_every_value_that_it_leaves_open() -> None:
    question = read_question({"layers": 24, "hidden": 2048, "nodes": 2, "gpu": "H100 SXM"})
    filled = {"heads 16", "tensor_parallel 1", "pipeline_parallel 1", "global_batch 1536"}
    usual = {"zero 0", "sequence_parallel False", "overlap_gradients True", "cuda_graphs False"}
    assert filled | usual <= set(question.assumed)
    assert not {text.partition(" ")[0] for text in question.assumed} & {"layers", "hidden", "nodes", "gpu"}
    stated = PlanRequest.model_validate({"overlap_gradients": False, "zero": 1, "gpu": "H100 SXM"}).assumed
    assert not [text for text in stated if text.startswith(("overlap_gradients", "zero "))]


@pytest.mark.parametrize("data", [[1], "layers", None])
def test_a_question_that_is_no_object_is_refused_with_an_example(data: Any) -> None:
    with pytest.raises(ValidationError) as error:
        read_question(data)
    message = 'the question is not a JSON object; use one such as {"layers": 24}'
    assert [refusal.message for refusal in refusals(error.value)] == [message]


@pytest.mark.usefixtures("catalogue")
def test_the_command_fills_in_sizes_that_fit_as_the_api_does(tmp_path: Path) -> None:
    path, out = tmp_path / "question.json", StringIO()
    path.write_text(json.dumps({"layers": 24, "hidden": 2048, "nodes": 2}))
    call_command("plan", "--question", str(path), stdout=out)
    assert "heads 16" in json.loads(out.getvalue())["assumed"]


def test_chunks_of_unequal_size_are_a_warning() -> None:
    question = PlanRequest(model="Llama 3.1 405B", gpu="H100 SXM", nodes=64, pipeline_parallel=8, zero=1,
                           schedule="interleaved-1f1b", chunks=8)  # fmt: skip
    warned = outline(question, device("H100 SXM")).warnings
    assert "126 layers do not divide into 64 chunks; the prediction treats the chunks as equal." in warned


def test_an_unknown_device_is_named_among_the_faults_with_the_nearest() -> None:
    with pytest.raises(ValidationError) as error:
        PlanRequest.model_validate({"kv_heads": 7, "gpu": "H100 SMX"}, context={"devices": ["H100 SXM", "H200 SXM"]})
    fields = {refusal.field: refusal.message for refusal in refusals(error.value)}
    assert set(fields) == {"kv_heads", "gpu"}
    assert "did you mean H100 SXM? use one of H100 SXM, H200 SXM, or add it in the admin (Devices)" in fields["gpu"]


def test_a_known_model_fills_omitted_fields_only() -> None:
    question = PlanRequest(model="Llama 3 8B", layers=16)
    assert (question.layers, question.hidden, question.mlp) == (16, 4096, "gated")
    chosen = preset("DeepSeek-V3")
    assert chosen is not None
    assert PlanRequest(model="deepseek v3").job().model == chosen.model


def test_a_config_of_hugging_face_is_read() -> None:
    config = {
        "model_type": "qwen3_moe", "num_hidden_layers": 48, "hidden_size": 2048, "num_attention_heads": 32,
        "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 6144, "moe_intermediate_size": 768,
        "num_experts": 128, "num_experts_per_tok": 8, "vocab_size": 151936, "hidden_act": "silu",
        "max_position_embeddings": 40960, "tie_word_embeddings": False, "sliding_window": None,
    }  # fmt: skip
    chosen = preset("Qwen3 30B-A3B")
    assert chosen is not None
    assert model_of(config, 4096).parameters == pytest.approx(chosen.model.parameters)
    gpt2 = {"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "n_positions": 1024, "vocab_size": 50257}
    assert model_of(gpt2).parameters == pytest.approx(124.4e6, rel=0.01)
    with pytest.raises(ValueError, match=r"num_hidden_layers is missing in config.json; add it"):
        model_of({"hidden_size": 768})


@pytest.mark.django_db
@pytest.mark.usefixtures("catalogue")
def test_the_command_answers_about_a_config_of_hugging_face(tmp_path: Path) -> None:
    config, question = tmp_path / "config.json", tmp_path / "question.json"
    config.write_text(
        json.dumps({"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257})
    )
    question.write_text(json.dumps({"sequence": 1024, "tensor_parallel": 1, "pipeline_parallel": 1, "nodes": 1}))
    out = StringIO()
    call_command("plan", "--question", str(question), "--huggingface", str(config), stdout=out)
    assert json.loads(out.getvalue())["work"]["parameters"] == pytest.approx(124.4e6, rel=0.01)


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        # 1.2 billion parameters of 16 bytes fit one device.
        ({"layers": 24, "hidden": 2048, "nodes": 3}, (16, 1, 1, 1536)),
        # 12.6 billion are 201 GB: 50 GB on each of four devices, 25 GB on each of eight.
        ({"layers": 40, "hidden": 5120, "nodes": 2}, (40, 8, 1, 1536)),
        # 64 billion need 32 devices: of 1, 2, 4 and 8 stages the fewest, which divide nodes and layers.
        ({"layers": 80, "hidden": 8192, "nodes": 8}, (64, 8, 4, 1536)),
        ({"layers": 80, "hidden": 8192, "nodes": 8, "pipeline_parallel": 8}, (64, 4, 8, 1536)),
        # Two replicas with micro batches of 7: the next multiple of 14.
        ({"layers": 40, "hidden": 5120, "nodes": 2, "micro_batch": 7}, (40, 8, 1, 1540)),
    ],
)
def test_sizes_that_are_not_stated_fit_those_that_are(stated: dict[str, Any], expected: tuple[int, ...]) -> None:
    fitted = fitting_defaults(stated)
    names = ("heads", "tensor_parallel", "pipeline_parallel", "global_batch")
    assert tuple(fitted[name] for name in names) == expected
    assert stated.items() <= fitted.items()
