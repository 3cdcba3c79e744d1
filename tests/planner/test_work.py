"""FLOPs of configured runs and their utilisation of a peak."""

from __future__ import annotations

from typing import Any

import pytest

from parlab.planner.job.hardware import Peak
from parlab.planner.prediction.flops import Shape, executed_flops, model_flops
from parlab.planner.prediction.work import utilisation, work_of

# The 1T row of Narayanan et al. 2021, table 1: full recomputation, 102.37 s per iteration by the formula of the paper.
TRILLION = {"num_layers": 128, "hidden_size": 25600, "sequence_length": 2048, "vocab_size": 51200, "kind": "gpt"}
A100 = Peak(312e12, "data sheet")


def sections(model: dict[str, Any] = TRILLION, **train: Any) -> dict[str, dict[str, Any]]:
    return {"model": dict(model), "train": {"global_batch_size": 3072, "recompute": "none", **train}}


def test_the_trillion_row_is_39_percent_mfu_and_52_percent_hfu() -> None:
    work = work_of(sections(recompute="full"))
    assert work is not None
    used = utilisation(work, 3072, 102.37, A100)
    assert used.mfu == pytest.approx(0.392, rel=0.01)
    assert used.hfu == pytest.approx(0.522, rel=0.01)
    assert used.tflops_per_gpu == pytest.approx(0.392 * 312, abs=0.4)
    assert "72 B s l h²" in work.formula
    assert "96 B s l h²" in work.formula


def test_a_bert_counts_both_of_its_heads() -> None:
    """2 FLOPs per weight and token forward, twice that backward: h x h per token, h x h and h x 2 per sequence."""
    size = {"num_layers": 24, "hidden_size": 1024, "sequence_length": 512, "vocab_size": 30592}
    gpt, bert = work_of(sections({**size, "kind": "gpt"})), work_of(sections({**size, "kind": "bert"}))
    assert gpt is not None
    assert bert is not None
    by_hand = 6 * 3072 * (512 * 1024 * 1024 + 1024 * 1024 + 1024 * 2)
    assert bert.model_flops - gpt.model_flops == pytest.approx(by_hand, rel=1e-6)
    assert bert.executed_flops == bert.model_flops


def test_a_prefix_has_no_logits() -> None:
    size = {"num_layers": 2, "hidden_size": 32, "sequence_length": 16, "vocab_size": 64}
    whole = work_of(sections(size))
    part = work_of(sections({**size, "attention_mask": "prefix", "prefix_length": 5}))
    assert whole is not None
    assert part is not None
    assert whole.model_flops - part.model_flops == pytest.approx(6 * 3072 * 4 * 32 * 64)


def test_recomputation_counts_in_executed_flops_only() -> None:
    selective = work_of(sections(recompute="selective"))
    shape = Shape(128, 25600, 2048, 51200)
    assert selective is not None
    assert selective.model_flops == model_flops(shape, 3072)
    assert selective.executed_flops == executed_flops(shape, 3072, "selective")


@pytest.mark.parametrize("missing", ["num_layers", "hidden_size", "sequence_length", "vocab_size"])
def test_flops_are_unknown_without_all_sizes(missing: str) -> None:
    assert work_of(sections({name: size for name, size in TRILLION.items() if name != missing})) is None


def test_emulated_compute_executes_no_flops() -> None:
    assert work_of(sections(compute="emulated")) is None


def test_hfu_is_unknown_without_the_recomputation_mode() -> None:
    work = work_of(sections(recompute=None))
    assert work is not None
    used = utilisation(work, 3072, 102.37, A100)
    assert used.mfu is not None
    assert used.hfu is None


def test_throughput_is_known_without_a_peak() -> None:
    work = work_of(sections())
    assert work is not None
    used = utilisation(work, 3072, 102.37, None)
    assert (used.mfu, used.hfu) == (None, None)
    assert used.tflops_per_gpu > 100
