"""The warning ahead of a limit, SIGTERM and the grace: what reaches the ranks, and how the attempt ends."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest

from runners.config import RunConfig
from runners.node.launch.launch import command
from runners.node.rundir import RunDir
from tests.chains import script
from tests.conftest import SMALL
from tests.runners.conftest import prepared
from tests.runners.supervised import Prepare, Supervise, supervise

__all__ = ["prepared", "supervise"]

WARNED = {"warn_before_s": 58, "warn_signal": "SIGUSR2", "timeout_s": 60, "grace_s": 10}


def train(prepared: Prepare, *arguments: object, **limits: Any) -> RunDir:
    """Prepare the script of a user with its arguments: steps, and seconds of a step."""
    run = prepared("", **limits)
    launch = run.read_launch()
    environment = {**launch["environment"], "PARLAB_CHECKPOINT_DIR": str(run.path / "checkpoint")}
    environment["PARLAB_WARN_SIGNAL"] = "SIGUSR2"
    argv = [sys.executable, script.__file__, *map(str, arguments)]
    run.write_launch({**launch, "argv": argv, "environment": environment})
    return run


def test_a_warned_training_writes_a_checkpoint_and_is_checkpointed(prepared: Prepare, supervise: Supervise) -> None:
    run = supervise(train(prepared, 1000, 0.02, **WARNED))
    run.says(b'"step":1,')
    end = run.ends()
    assert (end.state, end.exit_code) == ("checkpointed", 85)
    assert end.reason == "its ranks wrote a checkpoint ahead of launcher.timeout_s 60 s"
    assert b"parlab: SIGUSR2 to the ranks, ahead of launcher.timeout_s 60 s" in run.output()
    assert b"after SIGUSR2" in run.output()


def test_a_program_that_does_not_handle_the_signal_is_not_ended_by_it(prepared: Prepare, supervise: Supervise) -> None:
    run = supervise(prepared("import time; time.sleep(2.5); print('done')", **WARNED | {"warn_before_s": 59}))
    assert run.ends().state == "finished"


def test_sigterm_at_the_limit_gives_the_grace_to_write_a_checkpoint(prepared: Prepare, supervise: Supervise) -> None:
    end = supervise(train(prepared, 1000, 0.02, timeout_s=1, grace_s=10)).ends()
    assert (end.state, end.exit_code) == ("checkpointed", 85)
    assert end.reason == "stopped after launcher.timeout_s 1 s; its ranks wrote a checkpoint"


@pytest.mark.slow
def test_the_grace_is_kept_to_a_second(prepared: Prepare, supervise: Supervise) -> None:
    text = "import signal, time; signal.signal(15, lambda *_: print('told', flush=True)); time.sleep(60)"
    run = supervise(prepared(text, timeout_s=1, grace_s=4))
    run.says(b"told")
    told_at = time.monotonic()
    end = run.ends()
    assert 3 <= time.monotonic() - told_at <= 5
    assert end.state == "time-limit"
    assert end.reason.startswith("stopped after launcher.timeout_s 1 s; raise it")


def test_a_node_that_is_taken_away_preempts_its_run(prepared: Prepare, supervise: Supervise) -> None:
    run = supervise(train(prepared, 1000, 0.02, grace_s=10))
    run.says(b'"step":1,')
    run.run.preempt("terminate at 12:00")
    end = run.ends()
    assert end.state == "preempted"
    assert end.reason == "its node is taken away: terminate at 12:00; its ranks wrote a checkpoint"


def test_a_chain_stops_at_its_step(prepared: Prepare, supervise: Supervise) -> None:
    end = supervise(train(prepared, 1000, 0.02, grace_s=10, until_step=5)).ends()
    assert (end.state, end.reason) == (
        "checkpointed", "stopped at launcher.chain_until_step 5; its ranks wrote a checkpoint",
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("limits", [WARNED | {"warn_before_s": 50}, {"timeout_s": 10, "grace_s": 40}])
def test_both_reach_each_rank_and_not_its_launcher(
    prepared: Prepare, supervise: Supervise, limits: dict[str, Any]
) -> None:
    run = train(prepared, 100_000, 0.02, **limits)
    launch = run.read_launch()
    torchrun = command(RunConfig.model_validate(SMALL), run.config)
    run.write_launch({**launch, "argv": [*torchrun[: torchrun.index("-m", 3)], *launch["argv"][1:]]})
    supervised = supervise(run)
    end = supervised.ends()
    assert end.state == "checkpointed", end.reason
    directory = Path(launch["environment"]["PARLAB_CHECKPOINT_DIR"])
    assert sorted(path.name for path in directory.iterdir()) == ["step-0", "step-1"]
    assert supervised.output().count(b"checkpoint of step") == 2
