"""Real ranks that are warned, killed, or start again in another layout continue where they were."""

from __future__ import annotations

import resource
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from parlab.client.stopping import CHECKPOINTED
from runners.config import check
from tests.engines.checkpointed import Ranks
from tests.engines.test_bad_ends import prepare
from tests.patience import wait_for
from tests.runners.supervised import Supervise, supervise

__all__ = ["supervise"]

pytestmark = pytest.mark.slow

MODEL = {"num_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "sequence_length": 16, "vocab_size": 64}
TRAIN = {"global_batch_size": 8, "micro_batch_size": 2, "learning_rate": 1e-3, "iterations": 30}
MEGATRON = {"engine": "megatron", "tensor_parallel_size": 2}


def make_data(parallel: Mapping[str, Any], **sections: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "model": MODEL | dict(sections.get("model", {})),
        "train": TRAIN | dict(sections.get("train", {})),
        "parallel": dict(parallel),
        "cluster": {"device": "cpu"},
        "checkpoint": {"every_steps": 5} | dict(sections.get("checkpoint", {})),
    }


CASES: dict[str, dict[str, Any]] = {
    "pipeline": make_data({"pipeline_parallel_size": 2}),
    "pipeline with eight bits": make_data({"pipeline_parallel_size": 2, "wire_precision": "int8"}),
    "megatron": make_data(
        MEGATRON | {"pipeline_parallel_size": 2}, train={"optimizer": "adamw", "gradient_clipping": 1.0}
    ),
    "megatron in 16 bits": make_data(
        {"engine": "megatron", "data_parallel_size": 2}, train={"precision": "fp16", "optimizer": "sgd"}
    ),
    "zero 1": make_data({"engine": "zero", "data_parallel_size": 2, "zero_stage": 1}, train={"iterations": 16}),
    "zero 3": make_data({"engine": "zero", "data_parallel_size": 2, "zero_stage": 3}, train={"iterations": 16}),
    "hf": make_data(
        {"engine": "hf", "data_parallel_size": 2}, model={"implementation": "huggingface"}, train={"iterations": 20}
    ),
}
_UNINTERRUPTED: dict[str, dict[int, float]] = {}


def uninterrupted(name: str, directory: Path) -> dict[int, float]:
    """Return the losses of a run that writes no checkpoints."""
    if name not in _UNINTERRUPTED:
        with Ranks(CASES[name] | {"checkpoint": {}}, directory / "none") as ranks:
            assert set(ranks.ended()) == {0}, ranks.text
            _UNINTERRUPTED[name] = ranks.losses()
    return _UNINTERRUPTED[name]


@pytest.mark.parametrize("name", CASES)
def test_a_warned_run_saves_after_its_step_and_the_next_attempt_has_the_same_losses(name: str, tmp_path: Path) -> None:
    expected, folder = uninterrupted(name, tmp_path), tmp_path / "run-1"
    with Ranks(CASES[name], folder) as first:
        first.wait_for_step(7)
        first.warn(rank=1)
        assert set(first.ended()) == {CHECKPOINTED}, first.text
    (saved,) = first.events("checkpoint", kind="save")[-1:]
    last = max(first.losses())
    assert (saved["step"], saved["valid"], saved["blocked_s"] <= saved["seconds"]) == (last, True, True)
    with Ranks(CASES[name], folder, attempt=2) as second:
        assert set(second.ended()) == {0}, second.text
    (loaded,) = second.events("checkpoint", kind="load")
    assert (loaded["step"], loaded["path"], loaded["bytes"]) == (last, saved["path"], saved["bytes"])
    assert min(second.losses()) == last + 1
    assert first.losses() | second.losses() == expected  # bit for bit


@pytest.mark.parametrize("name", ["pipeline", "megatron", "zero 1", "hf"])
def test_a_killed_run_repeats_the_steps_since_its_last_checkpoint_alike(name: str, tmp_path: Path) -> None:
    expected, folder = uninterrupted(name, tmp_path), tmp_path / "run-1"
    with Ranks(CASES[name], folder) as first:
        first.wait_for_save()
        first.wait_for_step(8)
        first.kill()
    with Ranks(CASES[name], folder, attempt=2) as second:
        assert set(second.ended()) == {0}, second.text
    assert second.events("checkpoint", kind="load")[0]["step"] % 5 == 0
    assert first.losses().items() <= expected.items()
    assert second.losses().items() <= expected.items()
    assert max(second.losses()) == max(expected)
    assert second.events("step", rank=0)[0]["warmup"]


LAYOUTS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (MEGATRON, {"engine": "megatron", "data_parallel_size": 2}),
    ({"engine": "megatron", "data_parallel_size": 2}, MEGATRON | {"sequence_parallel": True}),
    (MEGATRON, {"engine": "megatron", "pipeline_parallel_size": 2}),
    ({"engine": "megatron", "pipeline_parallel_size": 2}, {"pipeline_parallel_size": 1}),
]


@pytest.mark.parametrize(("before", "after"), LAYOUTS)
def test_another_layout_continues_from_the_same_state(
    before: dict[str, Any], after: dict[str, Any], tmp_path: Path
) -> None:
    expected = uninterrupted("pipeline", tmp_path)
    folder = tmp_path / "run-1"
    with Ranks(make_data(before), folder) as first:
        first.wait_for_step(6)
        first.warn()
        assert set(first.ended()) == {CHECKPOINTED}, first.text
    with Ranks(make_data(after), folder, attempt=2) as second:
        assert set(second.ended()) == {0}, second.text
    losses = first.losses() | second.losses()
    assert min(second.losses()) == max(first.losses()) + 1
    assert losses == pytest.approx(expected, abs=1e-4)


ALONE = make_data({"engine": "pipeline"}, train={"iterations": 5000}, checkpoint={"every_steps": 20, "keep": 2})


ENDLESS = {"train": {"iterations": 5000}, "checkpoint": {"every_steps": 20}}
DISKS = {
    "megatron": make_data(MEGATRON, **ENDLESS),
    "zero": make_data({"engine": "zero", "data_parallel_size": 2, "zero_stage": 1}, **ENDLESS),
    "hf": make_data({"engine": "hf", "data_parallel_size": 2}, model={"implementation": "huggingface"}, **ENDLESS),
}


@pytest.mark.parametrize("name", DISKS)
def test_a_full_disk_loses_the_new_checkpoint_and_the_training_goes_on(name: str, tmp_path: Path) -> None:
    data, folder = DISKS[name], tmp_path / "run-1"
    with Ranks(data, folder) as first:
        before = first.wait_for_save()
        for process in first.processes:  # a disk that is full for every file beyond 10 kB
            assert process.pid is not None
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (10_000, 10_000))
        failed = first.wait_for_save(before["step"] + 20)
        while failed["valid"]:
            failed = first.wait_for_save(failed["step"] + 1)
        first.wait_for_step(failed["step"] + 5)
        assert f"the checkpoint of step {failed['step']} was not written: " in first.text
        first.warn()
        assert set(first.ended()) == {1}, first.text
    assert "could not be written before the end" in first.text
    valid = [event for event in first.events("checkpoint") if event["valid"]][-1]
    assert [path.name for path in folder.glob("step-*")][-1:] == [Path(valid["path"]).name]
    with Ranks(data, folder, attempt=2) as second:
        second.wait_for_step(valid["step"] + 1)
    assert second.events("checkpoint", kind="load")[0]["step"] == valid["step"]


def test_a_run_that_is_cancelled_saves_within_its_grace(
    tmp_path: Path, supervise: Supervise, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "checkpoints"
    monkeypatch.setenv("PARLAB_CHECKPOINT_DIR", str(folder))
    run = supervise(prepare(tmp_path, DISKS["megatron"] | {"checkpoint": {"every_steps": 4000}}, grace_s=60))
    run.says(b'"event":"step","step":5')
    run.run.cancel("cancelled by ada")
    assert run.ends().reason == "cancelled by ada; its ranks wrote a checkpoint"
    assert b"SIGTERM was received: ends after step" in run.output()
    assert len(list(folder.glob("step-*"))) == 1


def test_a_kill_in_the_middle_of_a_save_leaves_the_old_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "run-1"
    with Ranks(ALONE, folder) as first:
        first.wait_for_save(20)
        for _ in range(2000):
            if list(folder.glob(".draft-*/*")):
                break
            first.wait_for_step(1)
        first.kill()
    assert list(folder.glob(".draft-*"))
    with Ranks(ALONE, folder, attempt=2) as second:
        second.wait_for_step(20)
    (loaded,) = second.events("checkpoint", kind="load")
    assert (loaded["valid"], loaded["step"] >= 20) == (True, True)


def test_damaged_checkpoints_are_skipped_with_a_line_and_the_number_kept_is_obeyed(tmp_path: Path) -> None:
    folder = tmp_path / "run-1"
    with Ranks(ALONE, folder) as first:
        first.wait_for_save(60)
        first.warn(number=signal.SIGTERM)
        assert first.ended() == [CHECKPOINTED], first.text
    older, newest = sorted(folder.glob("step-*"))
    part = next(newest.glob("*.distcp"))
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)
    with Ranks(ALONE, folder, attempt=2) as second:
        second.wait_for_save(80)
        second.warn()
        second.ended()
    assert f"checkpoint {newest} is damaged and skipped: {part.name} has other content" in second.text
    assert second.events("checkpoint", kind="load", valid=True)[0]["path"] == str(older)
    assert len(list(folder.glob("step-*"))) == 2
    assert not list(folder.glob("damaged-*"))


def test_a_second_writer_and_another_model_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "run-1"
    with Ranks(ALONE, folder) as first:
        first.wait_for_save()
        with Ranks(ALONE, folder, attempt=2) as second:
            assert second.ended() == [2]
        assert "checkpoint.directory" in second.text
        assert f"attempt 1 (process {first.processes[0].pid} on" in second.text
    other = ALONE | {"model": MODEL | {"num_layers": 3}}
    with Ranks(other, folder, attempt=3) as third:
        assert third.ended() == [2]
    assert "is of another model: num_layers 2, here 3; use another checkpoint.directory" in third.text


def test_an_attempt_that_does_not_see_what_an_earlier_one_saved_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    for attempt in (2, 3):
        with Ranks(ALONE, folder, attempt, PARLAB_SAVED_STEP="20") as ranks:
            assert ranks.ended() == [2], ranks.text
        assert "sees nothing of the attempt that saved step 20" in ranks.text
        assert "set checkpoint.directory to a directory that all nodes see" in ranks.text
    with Ranks(ALONE, folder) as first:
        first.wait_for_save()
        first.kill()
    with Ranks(ALONE, folder, 2, PARLAB_SAVED_STEP="20") as second:
        second.wait_for_save()


def test_a_time_between_checkpoints_needs_no_steps(tmp_path: Path) -> None:
    data = make_data(
        {"engine": "pipeline"}, train={"iterations": 10**6}, checkpoint={"every_steps": None, "every_s": 1}
    )
    with Ranks(data, tmp_path / "run-1") as ranks:
        first = ranks.wait_for_save()
        second = ranks.wait_for_save(first["step"] + 1)
        ranks.warn()
        ranks.ended()
    assert 0.9 <= second["t"] - first["t"] <= 3


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
def test_a_warning_before_the_first_step_is_not_lost(number: signal.Signals, tmp_path: Path) -> None:
    with Ranks(ALONE, tmp_path / "run-1", PARLAB_WARN_SIGNAL=number.name) as ranks:
        wait_for(lambda: ranks.events("start") or (tmp_path / "run-1").exists(), "the engine is loaded")
        ranks.warn(number=number)
        assert ranks.ended() == [CHECKPOINTED], ranks.text
    assert f"{number.name} was received: ends after step " in ranks.text
    assert ("most recent call first" in ranks.text) == (number == signal.SIGUSR1)


def test_deepspeeds_format_is_refused_in_another_layout(tmp_path: Path) -> None:
    data, folder = CASES["zero 1"], tmp_path / "run-1"
    with Ranks(data, folder) as first:
        first.wait_for_step(3)
        first.warn()
        assert set(first.ended()) == {CHECKPOINTED}, first.text
    with Ranks(data | {"parallel": data["parallel"] | {"data_parallel_size": 1}}, folder, attempt=2) as second:
        assert second.ended() == [2]
    assert "with data_parallel_size 2 and reads it with no other" in second.text


def test_a_finished_run_starts_once_more_and_one_that_only_lacks_its_end_does_nothing(tmp_path: Path) -> None:
    data, folder = make_data({"engine": "pipeline"}, train={"iterations": 7}), tmp_path / "run-1"
    for attempt, steps in ((1, 7), (2, 7), (3, 0)):
        if attempt == 3:
            (folder / "finished").unlink()
        with Ranks(data, folder, attempt=attempt) as ranks:
            assert ranks.ended() == [0], ranks.text
        assert len(ranks.events("step")) == steps
        assert ranks.events("end")[0]["iterations"] == steps
    assert sorted(path.name for path in folder.iterdir()) == [
        "finished",
        "lock",
        "step-00000005-attempt-2",
        "step-00000007-attempt-2",
    ]


@pytest.mark.parametrize(
    ("sections", "field", "message"),
    [
        (
            {"parallel": {"engine": "capacity"}, "checkpoint": {"every_s": 60}},
            "checkpoint.every_s",
            "writes no checkpoints",
        ),
        ({"checkpoint": {"directory": "relative"}}, "checkpoint.directory", "pattern"),
        ({"checkpoint": {"directory": "/data/../etc"}}, "checkpoint.directory", "use the path of the directory itself"),
        ({"checkpoint": {"keep": 0}}, "checkpoint.keep", "greater than or equal to 1"),
    ],
)
def test_impossible_settings_are_refused(sections: dict[str, Any], field: str, message: str) -> None:
    _, problems = check(sections)
    assert [problem.field for problem in problems] == [field]
    assert message in problems[0].message
