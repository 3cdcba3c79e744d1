"""`manage.py plan` reads rows of published measurements and prints one prediction for each."""

import json
import os
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

SC21_18B: dict[str, Any] = {
    "id": "18B",
    "group": "sc21",
    "model": {"layers": 40, "hidden": 6144, "heads": 48, "seq": 2048, "vocab": 51200},
    "parallel": {"tp": 8, "pp": 1, "dp": 32, "mbs": 8, "gbs": 1024, "recompute": "full", "zero": 0},
    "hardware": {"gpu": "A100-80GB", "count": 256, "node": 8, "inter_node": "8x200Gb HDR IB"},
    "measured": {"iter_s": 9.4},
}


def plan(path: Path, *more: str) -> list[dict[str, Any]]:
    out = StringIO()
    call_command("plan", "--json", str(path), *more, stdout=out)
    return [json.loads(line) for line in out.getvalue().splitlines()]


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text(json.dumps({"rows": rows}))
    return path


def test_each_row_becomes_one_json_line_in_order(tmp_path: Path) -> None:
    lines = plan(written(tmp_path / "rows.json", [SC21_18B, SC21_18B | {"id": "again"}]))
    assert [line["id"] for line in lines] == ["18B", "again"]
    assert list(lines[0]) == ["id", "iter_s", "tflops_per_gpu", "memory_gb", "fits", "fits_probability", "basis"]
    assert lines[0]["fits_probability"] > 0.95
    assert lines[0]["fits"] is True
    assert lines[0]["iter_s"] == pytest.approx(9.4, rel=0.3)


def test_measurements_do_not_change_an_uncalibrated_prediction(tmp_path: Path) -> None:
    lines = plan(written(tmp_path / "rows.json", [SC21_18B, SC21_18B | {"measured": {"iter_s": 1e6}}]))
    assert lines[0]["iter_s"] == lines[1]["iter_s"]


def test_measured_rows_of_the_same_cluster_move_the_prediction_towards_them(tmp_path: Path) -> None:
    slow = [SC21_18B | {"measured": {"iter_s": 18.8}}, SC21_18B | {"measured": {"iter_s": 18.9}}]
    rows = written(tmp_path / "rows.json", [SC21_18B])
    before = plan(rows)[0]
    after = plan(rows, "--calibrate", str(written(tmp_path / "slow.json", slow)))[0]
    assert abs(after["iter_s"] - 18.85) < abs(before["iter_s"] - 18.85)
    assert "2 times" in after["basis"]


def test_a_row_that_cannot_be_predicted_gets_a_reason_and_the_others_a_prediction(tmp_path: Path) -> None:
    unknown = SC21_18B | {"id": "odd", "hardware": {"gpu": "X9000", "count": 8}}
    lines = plan(written(tmp_path / "rows.json", [unknown, SC21_18B]))
    assert lines[0]["iter_s"] is None
    assert "X9000" in lines[0]["basis"]
    assert lines[1]["iter_s"] > 0


@pytest.mark.parametrize("text", ["not json", "[" * 100_000, '{"layers": ' + "1" * 5000 + "}"])
def test_a_file_with_invalid_json_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "rows.json"
    path.write_text(text)
    with pytest.raises(CommandError, match="invalid JSON"):
        plan(path)


def test_flat_rows_are_read(tmp_path: Path) -> None:
    flat = {"id": "v-1", "gpus": 2, "gbs": 16, "mbs": 8, "hidden": 1024, "heads": 16, "layers": 24, "seq": 1024}
    path = tmp_path / "rows.json"
    path.write_text(
        json.dumps({"recompute": "full", "gpu": "A100 (8 per node)", "rows": [flat | {"tp": 1, "dp": 1, "pp": 2}]})
    )
    assert plan(path)[0]["iter_s"] > 0


def test_the_zero_bubble_papers_1f1b_i_has_chunks_of_one_layer(tmp_path: Path) -> None:
    parallel = SC21_18B["parallel"] | {"tp": 1, "pp": 8, "dp": 1, "mbs": 6, "gbs": 192, "recompute": "none"}
    model = {"layers": 22, "hidden": 2304, "heads": 24, "seq": 1024}
    rows = [
        SC21_18B | {"model": model, "parallel": parallel | chunks, "hardware": {"gpu": "A100-80GB", "count": 8}}
        for chunks in ({"schedule": "1F1B-I"}, {"schedule": "interleaved", "virtual_pp": 3})
    ]
    paper, explicit = plan(written(tmp_path / "rows.json", rows))
    assert paper["memory_gb"] == explicit["memory_gb"] == pytest.approx(40, rel=0.06)


@pytest.mark.usefixtures("catalogue")
def test_a_question_gets_the_same_answer_as_from_the_api(tmp_path: Path) -> None:
    path, out = tmp_path / "question.json", StringIO()
    path.write_text(json.dumps({"layers": 24, "hidden": 2048, "heads": 16, "tensor_parallel": 1, "nodes": 3}))
    call_command("plan", "--question", str(path), stdout=out)
    answer = json.loads(out.getvalue())
    assert answer["fits"] is True
    assert answer["layouts"][0]["reason"] == ""


@pytest.mark.usefixtures("catalogue")
def test_an_impossible_question_names_the_field(tmp_path: Path) -> None:
    path = tmp_path / "question.json"
    path.write_text(json.dumps({"layers": 0}))
    with pytest.raises(CommandError, match="layers 0 is invalid: use 1 or more"):
        call_command("plan", "--question", str(path))


@pytest.mark.parametrize(
    ("section", "value"),
    [
        ("model", {"layers": -1, "hidden": 8}),
        ("model", []),
        ("model", {"layers": 1e300, "hidden": 8}),
        ("model", {"layers": "many", "hidden": 8}),
        ("parallel", "tp8"),
        ("parallel", {"tp": float("nan")}),
        ("parallel", {"zero": 9}),
        ("parallel", {"zero": 2.5}),
        ("parallel", {"pp": 41}),
        ("hardware", {"count": 8}),
        ("hardware", {"gpu": 5, "count": 8}),
        ("hardware", {"gpu": "A100", "count": -8}),
        ("hardware", {"gpu": "A100", "gbps": float("inf")}),
    ],
)
def test_a_hostile_row_gets_a_reason_instead_of_a_traceback(tmp_path: Path, section: str, value: Any) -> None:
    rows = written(tmp_path / "rows.json", [SC21_18B | {section: value}])
    line = plan(rows, "--calibrate", str(rows))[0]
    assert line["iter_s"] is None
    assert line["basis"].startswith("not predicted: ")


def test_a_row_without_precision_on_a_gpu_without_bf16_is_fp32_unless_similar_rows_are_fp16(
    tmp_path: Path,
) -> None:
    open_row = SC21_18B | {"hardware": {"gpu": "V100-32GB", "count": 256, "node": 8}}
    fp16_row = open_row | {"parallel": SC21_18B["parallel"] | {"precision": "fp16"}}
    slow, fast = plan(written(tmp_path / "rows.json", [open_row, fp16_row]))
    assert slow["iter_s"] > 2 * fast["iter_s"]
    assert "precision is not given: fp32" in slow["basis"]
    neighbours = [
        open_row | {"parallel": SC21_18B["parallel"] | {"mbs": mbs}, "measured": {"iter_s": fast["iter_s"]}}
        for mbs in (2, 4, 8)
    ]
    measured = written(tmp_path / "measured.json", neighbours)
    near = plan(tmp_path / "rows.json", "--calibrate", str(measured))[0]
    assert near["iter_s"] == pytest.approx(fast["iter_s"], rel=0.2)


@pytest.mark.parametrize(
    ("section", "value", "note"),
    [
        ("parallel", {"precision": "fp8"}, "precision fp8 is not supported by A100 SXM4 80 GB"),
        ("parallel", {"tp": 32, "dp": 8}, "tp 32 does not divide heads 48"),
        ("parallel", {"gbs": None}, "gbs is not given: 256 assumed, mbs 8 x dp 32 x gas 1"),
        ("parallel", {"recompute": None}, "recompute is not given: none assumed"),
        ("parallel", {"zero": None}, "zero is not given: 0 assumed"),
        ("model", {"name": "Llama-9 8B"}, "name Llama-9 8B is no known model: only the sizes of the row count"),
        ("model", {"seq": None}, "seq is not given: 1024 assumed"),
        ("model", {}, "mlp is not given: plain assumed; ffn is not given: 24576 assumed, 4 x hidden"),
        ("model", {}, "kv_heads is not given: as many as heads assumed"),
        ("model", {"experts": 8}, "experts_per_token is not given: 1 assumed"),
        ("model", {"params_b": 7}, "params_b 7 is not the 18.4 of the sizes, which count"),
        ("model", {"q_lora_rank": 512}, "without attention mla, q_lora_rank has no effect"),
        ("parallel", {}, "optimizer is not given: Adam assumed"),
        ("parallel", {}, "sequence_parallel is not given: false assumed"),
        ("parallel", {}, "as they are not given: overlap_gradients false, overlap_tensor false, cuda_graphs false"),
        ("parallel", {"pp": 2, "dp": 16}, "schedule is not given: 1f1b assumed"),
        ("parallel", {"tp": None, "dp": 256, "gbs": 2048}, "tp is not given: 1 assumed"),
        ("parallel", {"gas": 7}, "gas 7 is not gbs 1024 / (mbs 8 x dp 32 = 256): gbs counts"),
        ("parallel", {"microbatches": 5}, "microbatches 5 is not gbs 1024 / (mbs 8 x dp 32 = 256): gbs counts"),
        ("parallel", {"pp": 2, "dp": 16, "vp": 3}, "vp 3 x pp 2 does not divide layers 40: treated as if it did"),
        ("parallel", {"framework": "Megatorn"}, "framework Megatorn is no known code base"),
        ("parallel", {"framework": "Megatron", "release": "9.9"}, "release 9.9 of Megatron-LM was not measured"),
        ("parallel", {"release": "26.04"}, "release 26.04 has no effect without a framework"),
        ("parallel", {"expert_imbalance": 2, "etp": 2}, "without experts, etp, expert_imbalance have no effect"),
        ("hardware", {"node": None}, "node is not given: 8 GPUs per node assumed"),
        ("hardware", {"inter_node": "fast"}, "inter_node 'fast' states no bandwidth, like 3200Gb or 400GB/s"),
        ("hardware", {"peak_tflops": 125}, "peak_tflops 125 is no peak of A100 SXM4 80 GB"),
    ],
)
def test_an_inconsistent_row_is_predicted_with_a_note(
    tmp_path: Path, section: str, value: dict[str, Any], note: str
) -> None:
    line = plan(written(tmp_path / "rows.json", [SC21_18B | {section: SC21_18B[section] | value}]))[0]
    assert line["iter_s"] > 0
    assert note in line["basis"]


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("parallel", {"schedule": "dualpipes"}, "parallel.schedule 'dualpipes' is unknown; did you mean dualpipe?"),
    ("parallel", {"precision": "fp9"}, "parallel.precision 'fp9' is unknown; did you mean fp8?"),
    ("parallel", {"recompute": "banana"}, "parallel.recompute 'banana' is unknown; use one of none"),
    ("parallel", {"attention": "flsh"}, "parallel.attention 'flsh' is unknown; did you mean flash?"),
    ("parallel", {"optimizer": "lion"}, "parallel.optimizer 'lion' is unknown"),
    ("parallel", {"sequence_parallel": "false"}, "parallel.sequence_parallel 'false' is not true or false"),
    ("parallel", {"cuda_graphs": "no"}, "parallel.cuda_graphs 'no' is not true or false"),
    ("model", {"mlp": "swigluu"}, "model.mlp 'swigluu' is unknown; did you mean swiglu?"),
    ("model", {"window": 512}, "window 512 needs fused attention"),
    ("parallel", {"dp": 8}, "dp 8 x tp 8 x pp 1 x cp 1 = 64 is not count 256; use dp 32"),
    ("parallel", {"ep": 512}, "ep 512 does not divide experts 1"),
    ("parallel", {"gbs": 100}, "gbs 100 is not a multiple of mbs 8 x dp 32 = 256; use a multiple"),
    ("parallel", {"gbs": 8}, "gbs 8 is not a multiple of mbs 8 x dp 32 = 256; use a multiple"),
    ("parallel", {"pp": 8, "dp": 4, "vp": 7}, "vp 7 x pp 8 is more than layers 40"),
    ("parallel", {"cp": 32, "dp": 1, "tp": 8, "zero": 4}, "zero 4 is not a ZeRO stage"),
    ("parallel", {"tp": 0}, "tp 0 is not a positive integer; use 1 or more"),
    ("parallel", {"mbs": True}, "mbs 'True' is not a number; use a number"),
    ("parallel", {"gbs": []}, "gbs '[]' is not a number; use a number"),
    ("parallel", {"gbs": 10**400}, "gbs is more than 1e308; use a smaller number"),
    ("parallel", {"pp": 41, "dp": 1}, "pp 41 is more than layers 40; use 40 stages or fewer"),
    ("parallel", {"fsdp": 5, "zero": None}, "fsdp 5 does not divide dp x cp = 32; use a divisor"),
    ("parallel", {"fsdp": 8, "zero": 1}, "zero 1 contradicts fsdp 8, which is zero 3; leave one out"),
    ("parallel", {"recompute": "none", "recomputed_layers": 3}, "recomputed_layers 3 contradicts recompute none"),
    ("parallel", {"recomputed_layers": 41}, "recomputed_layers 41 is more than the 40 layers of a stage"),
    ("parallel", {"pp": 2, "dp": 16, "schedule": "gpipe", "vp": 4}, "vp 4 contradicts schedule gpipe"),
    ("parallel", {"pp": 2, "dp": 16, "vp": 4, "virtual_pp": 2}, "vp 4 and virtual_pp 2 contradict each other"),
    ("parallel", {"pp": 5, "dp": 1, "schedule": "dualpipe"}, "pp 5 is odd; use an even number with dualpipe"),
    ("parallel", {"offload": "banana"}, "parallel.offload 'banana' is unknown; use one of none"),
    ("parallel", {"framework": ["Megatron"]}, "framework \"['Megatron']\" is not a text; use the name of a trainer"),
    ("parallel", {"ddp": "banana"}, "parallel.ddp 'banana' is unknown; use one of local, torch"),
    ("model", {"heads": 7}, "heads 7 does not divide hidden 6144; use a divisor, or set head_dim"),
    ("model", {"kv_heads": 5}, "kv_heads 5 does not divide heads 48; use a divisor"),
    ("model", {"windowed_share": 1.5}, "windowed_share 1.5 is out of range; use 0 to 1"),
    ("model", {"experts": 1e30}, "experts 1000000000000000019884624838656 is invalid; use a whole number"),
    ("model", {"hidden": None, "params_b": 18}, "model.hidden is missing; give layers and hidden, or only params_b"),
    ("model", {"layers": None, "hidden": None, "name": "Llama-3 7B"}, "is no known model; did you mean Llama 3 70B?"),
    ("model", {"params_b": -1}, "params_b -1 is not positive; use billions of parameters"),
    ("model", {"name": ["Llama"]}, "is not a text; use the name of a model, or leave it out"),
    ("hardware", {"delay_ms": -1}, "delay_ms -1 is out of range; use 0 to 60000"),
    ("hardware", {"gbps": -1}, "gbps -1 is out of range; use more than 0 and at most 1e6"),
    ("hardware", {"nvlink_domain": 2}, "nvlink_domain 2 is less than node 8; use at least the GPUs of a node"),
    ("hardware", {"inter_node": 3200}, "inter_node '3200' is not a text; use a bandwidth with its unit, like 3200Gb"),
    ("hardware", {"peak_tflops": 0}, "peak_tflops 0 is not positive; use the TFLOP/s of the data sheet"),
    ("hardware", {"count": 16}, "dp 32 x tp 8 x pp 1 x cp 1 = 256 is not count 16; use dp 2"),
]


@pytest.mark.parametrize(("section", "value", "problem"), REFUSED)
def test_a_value_that_no_training_can_have_is_refused(
    tmp_path: Path, section: str, value: dict[str, Any], problem: str
) -> None:
    line = plan(written(tmp_path / "rows.json", [SC21_18B | {section: SC21_18B[section] | value}]))[0]
    assert line["iter_s"] is None
    assert problem in line["basis"]


def test_experts_must_divide_the_gpus_of_a_stage(tmp_path: Path) -> None:
    row = {
        "model": {"name": "Qwen3 30B-A3B", "seq": 4096},
        "parallel": {"pp": 8, "ep": 64, "mbs": 1, "gbs": 64},
        "hardware": {"gpu": "H100-80GB", "count": 8},
    }
    line = plan(written(tmp_path / "rows.json", [row]))[0]
    assert line["iter_s"] is None
    assert "ep 64 x etp 1 = 64 does not divide the 1 GPUs of a stage" in line["basis"]


def test_an_entry_that_is_not_an_object_does_not_affect_the_others(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(["odd", SC21_18B, None]))
    lines = plan(path, "--calibrate", str(path))
    assert [line["iter_s"] is None for line in lines] == [True, False, True]
    assert "row 'odd' is not an object; use one" in lines[0]["basis"]


@pytest.mark.parametrize(
    "rate", [{"tokens_per_s_gpu": 871.5}, {"samples_per_gpu_s": 0.42553}, {"hfu_tflops_per_gpu": 135.0}]
)
def test_rates_per_gpu_calibrate_like_the_time_of_an_iteration(tmp_path: Path, rate: dict[str, float]) -> None:
    rows = written(tmp_path / "rows.json", [SC21_18B])
    measured = written(tmp_path / "measured.json", [SC21_18B | {"measured": rate}])
    line = plan(rows, "--calibrate", str(measured))[0]
    assert "calibrated on group sc21: 1 time;" in line["basis"] + ";"
    assert line["iter_s"] == pytest.approx(9.4, rel=0.02)


def test_measurements_of_another_cluster_and_repeated_ones_do_not_change_the_calibration(tmp_path: Path) -> None:
    rows = written(tmp_path / "rows.json", [SC21_18B])
    slow = SC21_18B | {"measured": {"iter_s": 18.8}}

    def calibrated(*measured: dict[str, Any]) -> dict[str, Any]:
        return plan(rows, "--calibrate", str(written(tmp_path / "measured.json", list(measured))))[0]

    assert calibrated(slow | {"group": "another"}) == plan(rows)[0]
    assert calibrated(slow, slow, slow) == calibrated(slow)
    unnamed = calibrated(slow | {"group": None})
    assert unnamed == plan(rows)[0]


def test_a_row_without_a_group_is_calibrated_on_the_same_device(tmp_path: Path) -> None:
    rows = written(tmp_path / "rows.json", [SC21_18B | {"group": None}])
    measured = written(tmp_path / "measured.json", [SC21_18B | {"measured": {"iter_s": 18.8}}])
    before, after = plan(rows)[0], plan(rows, "--calibrate", str(measured))[0]
    assert before["iter_s"] < after["iter_s"] < 18.8
    assert "calibrated on cluster A100 SXM4 80 GB 8 per node: 1 time" in after["basis"]


@pytest.mark.parametrize(
    ("measured", "problem"),
    [
        ({"iter_sec": 9}, "measured has no measurement; did you mean iter_s? use one of iter_s, mem_gb"),
        ({"iter_s": 1e300}, "measured.iter_s 1e+300 is out of range; use 0.000001 to 1e+09"),
        ({"iter_s": -5}, "measured.iter_s -5 is out of range"),
        ({"memory_gb": 1e9}, "measured.mem_gb 1e+09 is out of range; use 0.000001 to 1e+06"),
        ({"oom": "no"}, "measured.oom 'no' is not true or false; use the JSON values true or false"),
    ],
)
def test_a_row_that_calibrates_nothing_is_named_with_the_reason(
    tmp_path: Path, measured: dict[str, Any], problem: str
) -> None:
    rows = written(tmp_path / "rows.json", [SC21_18B])
    file, out, errors = tmp_path / "measured.json", StringIO(), StringIO()
    file.write_text(json.dumps([SC21_18B, SC21_18B | {"measured": measured}]))
    call_command("plan", "--json", str(rows), "--calibrate", str(file), stdout=out, stderr=errors)
    assert f"{file}: 1 of 2 rows calibrate nothing: row 2 18B: {problem}" in errors.getvalue()
    assert "calibrated on group sc21: 1 time;" in json.loads(out.getvalue())["basis"]


def test_the_basis_counts_jobs_that_ran_out_of_memory(tmp_path: Path) -> None:
    rows = written(tmp_path / "rows.json", [SC21_18B])
    measured = written(tmp_path / "measured.json", [SC21_18B | {"measured": {"oom": True}}])
    assert "calibrated on group sc21: 1 job out of memory" in plan(rows, "--calibrate", str(measured))[0]["basis"]


def test_rows_of_a_known_cluster_use_its_links_unless_they_state_others(tmp_path: Path) -> None:
    plain = SC21_18B | {"hardware": {"gpu": "A100-80GB", "count": 256, "node": 8}}
    known = plain | {"source": "BigScience tr11-176B chronicles"}
    stated = known | {
        "hardware": {"gpu": "A100-80GB", "count": 256, "node": 8, "link_gb_s": 300, "inter_node": "1600Gb"}
    }
    seconds = [line["iter_s"] for line in plan(written(tmp_path / "rows.json", [plain, known, stated]))]
    assert seconds[1] > 1.1 * seconds[0]
    assert seconds[2] == pytest.approx(seconds[0])
    assert "links of the A100 partition of Jean Zay" in plan(written(tmp_path / "known.json", [known]))[0]["basis"]


@pytest.mark.slow
def test_a_question_is_answered_without_a_database(tmp_path: Path) -> None:
    """A fresh clone has no tables: a process of its own, with an empty data directory."""
    question = {"model": "Llama 3 8B", "gpu": "H100 SXM", "nodes": 1, "tensor_parallel": 1, "pipeline_parallel": 1}
    path = tmp_path / "question.json"
    path.write_text(json.dumps(question | {"global_batch": 64}))
    environment = os.environ | {"PARLAB_DATA_DIR": str(tmp_path / "data")}
    environment.pop("DATABASE_URL", None)
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "manage.py", "plan", "--question", str(path)]
    ended = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    answer = json.loads(ended.stdout)
    assert 0 <= answer["fits_probability"] <= 1
    assert "micro_batch 1" in answer["assumed"]
    assert not [text for text in answer["assumed"] if text.startswith(("global_batch ", "nodes "))]
    assert all(layout["fits_probability"] >= 0.95 for layout in answer["short_runs"])
    assert 1 <= len(answer["short_runs"]) <= 5
