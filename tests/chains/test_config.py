"""Chains, warnings and graces of a configuration: what is refused, with field, value and remedy."""

from __future__ import annotations

from typing import Any

import pytest

from runners.config import check
from tests.conftest import SMALL

COMMAND: dict[str, Any] = {"parallel": {"engine": "command"}, "command": {"argv": ["/opt/train"]}}


def problems(launcher: dict[str, Any], **more: Any) -> list[tuple[str, Any, str]]:
    config, found = check({**SMALL, **more, "launcher": launcher})
    assert (config is None) == bool(found)
    return [(problem.field, problem.value, problem.message) for problem in found]


@pytest.mark.parametrize(
    ("launcher", "field", "message"),
    [
        ({"timeout_s": 60, "grace_s": 61}, "grace_s", "grace_s 61 is longer than the limit, timeout_s 60; use at most"),
        ({"timeout_s": 20, "warn_before_s": 5}, "grace_s", "grace_s 30 is longer than the limit, timeout_s 20"),
        ({"timeout_s": 60, "warn_before_s": 60}, "warn_before_s", "warn_before_s 60 is not less than the limit,"),
        ({"chain_until_step": 10}, "chain_until_step", "chain_until_step 10 has no effect without a chain; set"),
        ({"chain_until_s": 99}, "chain_until_s", "chain_until_s 99 has no effect without a chain"),
        ({"chain_until_exit_code": 3}, "chain_until_exit_code", "chain_until_exit_code 3 has no effect without"),
    ],
)
def test_what_does_not_fit_together_is_refused(launcher: dict[str, Any], field: str, message: str) -> None:
    (found,) = problems(launcher, **COMMAND)
    assert found[:2] == (f"launcher.{field}", launcher.get(field, 30))
    assert found[2].startswith(message)


def test_a_warning_fits_into_the_limit_of_the_job_too() -> None:
    (found,) = problems({"warn_before_s": 120}, slurm={"time_limit_s": 120}, **COMMAND)
    assert found[0] == "launcher.warn_before_s"
    assert "slurm.time_limit_s 120" in found[2]


def test_the_grace_fits_into_the_limit_of_the_job_too() -> None:
    (found,) = problems({"grace_s": 90}, slurm={"time_limit_s": 60}, **COMMAND)
    assert found[:2] == ("launcher.grace_s", 90)
    assert found[2].startswith("grace_s 90 is longer than the limit, slurm.time_limit_s 60; use at most 60")


def test_a_chain_without_a_checkpoint_is_refused() -> None:
    (found,) = problems({"chain": True})
    assert found[:2] == ("launcher.chain", True)
    assert found[2].endswith("writes none; set checkpoint.every_steps")
    assert not problems({"chain": True}, **COMMAND), "a program has checkpoints of its own"


def test_the_signal_for_stacks_is_no_warning_of_our_engines() -> None:
    (found,) = problems({"warn_before_s": 10, "warn_signal": "SIGUSR1"})
    assert found[2].endswith("for their stacks; use SIGUSR2")
    assert not problems({"warn_before_s": 10, "warn_signal": "SIGUSR1"}, **COMMAND)


def test_a_short_run_need_not_shorten_the_default_grace() -> None:
    assert not problems({"timeout_s": 5})
