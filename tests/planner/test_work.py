"""The work of configured runs, and their shares of a peak."""

from __future__ import annotations

from typing import Any

import pytest

from parlab.planner.flops import Shape, executed_flops, model_flops
from parlab.planner.hardware import Peak
from parlab.planner.work import utilisation, work_of

# The 1T row of Narayanan et al. 2021, table 1: full recompute, 102.37 s an iteration by its own formula.
TRILLION = {"num_layers": 128, "hidden_size": 25600, "sequence_length": 2048, "vocab_size": 51200, "kind": "gpt"}
A100 = Peak(312e12, "data sheet")


def sections(model: dict[str, Any] = TRILLION, **train: Any) -> dict[str, dict[str, Any]]:
    return {"model": dict(model), "train": {"global_batch_size": 3072, "recompute": "none", **train}}


def test_the_trillion_row_is_39_percent_mfu_and_52_percent_hfu() -> None:
    work = work_of(sections(recompute="full"))
    assert work is not None
    found = utilisation(work, 3072, 102.37, A100)
    assert found.mfu == pytest.approx(0.392, rel=0.01)
    assert found.hfu == pytest.approx(0.522, rel=0.01)
    assert found.tflops_per_gpu == pytest.approx(0.392 * 312, abs=0.4)
    assert "72 B s l h²" in work.formula
    assert "96 B s l h²" in work.formula


def test_a_bert_counts_both_of_its_heads() -> None:
    """By hand: 2 FLOPs a weight and token forward, twice that backward, for h x h, h x h on one token, h x 2 on one."""
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


def test_what_is_computed_again_counts_for_the_hardware_only() -> None:
    selective = work_of(sections(recompute="selective"))
    shape = Shape(128, 25600, 2048, 51200)
    assert selective is not None
    assert selective.model_flops == model_flops(shape, 3072)
    assert selective.executed_flops == executed_flops(shape, 3072, "selective")


@pytest.mark.parametrize("missing", ["num_layers", "hidden_size", "sequence_length", "vocab_size"])
def test_without_a_size_there_is_no_work(missing: str) -> None:
    assert work_of(sections({name: size for name, size in TRILLION.items() if name != missing})) is None


def test_emulated_compute_is_no_work() -> None:
    assert work_of(sections(compute="emulated")) is None


def test_where_nobody_knows_of_recomputation_there_is_no_hfu() -> None:
    work = work_of(sections(recompute=None))
    assert work is not None
    found = utilisation(work, 3072, 102.37, A100)
    assert found.mfu is not None
    assert found.hfu is None


def test_without_a_peak_there_are_still_flops() -> None:
    work = work_of(sections())
    assert work is not None
    found = utilisation(work, 3072, 102.37, None)
    assert (found.mfu, found.hfu) == (None, None)
    assert found.tflops_per_gpu > 100
