"""The effects of code bases and their releases on the time."""

from __future__ import annotations

from dataclasses import replace
from math import exp

import pytest

from parlab.planner import DEFAULT, Job, Model, Observation, calibrate, cluster, predict_job
from parlab.planner.calibration.levels import (
    CODE_BASE,
    LEVELS,
    RELEASE,
    UNKNOWN,
    Excess,
    Level,
    estimated,
    level_of,
    narrowed,
)
from parlab.planner.job.code_bases import CODE_BASES, release_of, with_code_base
from parlab.planner.publications import rows

JOB = Job(Model(24, 2048, 16, 2048, 51_200), 64, data_parallel=8, has_flash_attention=True)
NODE = cluster("H100", 8, 8)


def excesses(release: str, log_ratio: float, count: int, publication: str = "page") -> list[Excess]:
    return [Excess("Trainer", release, publication, log_ratio)] * count


def test_many_rows_of_a_release_move_it_and_few_rows_hardly_do() -> None:
    many = estimated([*excesses("1", 0.1, 100), *excesses("2", 0.0, 100)])
    few = estimated([*excesses("1", 0.1, 2), *excesses("2", 0.0, 2)])
    assert many["Trainer", "1"].shift > 2 * few["Trainer", "1"].shift > 0 > many["Trainer", "2"].shift
    assert many["Trainer", "1"].deviation < few["Trainer", "1"].deviation < UNKNOWN


def test_what_all_releases_of_a_publication_have_in_common_is_the_publication() -> None:
    levels = estimated([*excesses("1", 0.1, 50), *excesses("2", 0.1, 50)])
    assert abs(levels["Trainer", "1"].shift) < 0.02
    two = estimated([*excesses("1", 0.1, 50, "one"), *excesses("1", 0.1, 50, "two"), *excesses("1", 0.1, 50, "three")])
    assert two["Trainer", "1"].shift > levels["Trainer", "1"].shift


def test_an_unknown_release_has_the_effect_of_its_code_base_and_more_deviation() -> None:
    levels = estimated(excesses("1", 0.1, 100))
    unknown = level_of(levels, "Trainer", "9")
    assert 0 < unknown.shift < levels["Trainer", "1"].shift
    assert levels["Trainer", "1"].deviation < unknown.deviation <= UNKNOWN
    assert level_of(levels, "another", "1") == Level(0.0, UNKNOWN)
    assert pytest.approx((CODE_BASE**2 + RELEASE**2) ** 0.5) == UNKNOWN
    assert estimated([]) == {}


def test_the_interval_of_an_unknown_code_base_is_the_widest() -> None:
    assert narrowed(0.125, Level(0.0, UNKNOWN)) == pytest.approx(0.125)
    assert 0.1 < narrowed(0.125, Level(0.0, 0.5 * UNKNOWN)) < 0.125
    unknown = predict_job(JOB, NODE)
    known = predict_job(with_code_base(JOB, "Megatron-Bridge", "26.04"), NODE)
    assert known.spread < unknown.spread


def test_a_release_changes_the_time_by_its_effect_and_nothing_else() -> None:
    base = with_code_base(JOB, "Megatron-Bridge")
    plain, released = (predict_job(replace(base, release=release), NODE) for release in ("", "26.06"))
    shift = LEVELS["Megatron-Bridge", "26.06"].shift - LEVELS["Megatron-Bridge", ""].shift
    assert released.iteration_s / plain.iteration_s == pytest.approx(exp(shift))
    assert released.memory == plain.memory


def test_a_calibration_includes_the_effect_of_its_own_code_base() -> None:
    job = with_code_base(JOB, "Megatron-Bridge", "26.06")
    calibration = calibrate([Observation(job, NODE, iteration_s=1.0)] * 4, "runs")
    assert predict_job(job, NODE, calibration).iteration_s == pytest.approx(
        predict_job(replace(job, release=""), NODE, calibration).iteration_s
    )


def test_shipped_effects_belong_to_known_code_bases() -> None:
    assert {base for base, _release in LEVELS} <= {entry.name for entry in CODE_BASES}
    assert DEFAULT.levels == LEVELS
    assert all(abs(level.shift) < 0.1 and 0 < level.deviation < 0.1 for level in LEVELS.values())


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ("NVIDIA Megatron-Bridge performance page, 26.04.01 NeMo Container", "26.04"),
        ("MLPerf v5.0, NVIDIA eos-dfw_n64_ngc25.01_nemo, llama31_405b", "25.01"),
        ("Megatron-LM README images/model_table.png (Megatron-Core r0.8)", "0.8"),
        ("torchtitan performance pages (H100 of 500 W and 96 GB HBM2e, 2.4 TB/s)", ""),
    ],
)
def test_a_source_names_a_release(text: str, release: str) -> None:
    assert release_of(text) == release


def test_a_row_states_its_release() -> None:
    item = {
        "source": "Megatron-Core r0.8",
        "model": {"layers": 24, "hidden": 2048, "heads": 16, "seq": 2048},
        "parallel": {"dp": 8, "gbs": 64},
        "hardware": {"gpu": "H100", "count": 8},
    }
    assert rows.read(item).job.release == "0.8"
    assert rows.read(item | {"parallel": {"dp": 8, "gbs": 64, "release": "0.12"}}).job.release == "0.12"
