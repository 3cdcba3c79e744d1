"""Silence is told from slowness, and a run that hangs ends with the place of every rank in its reason and its log."""

from __future__ import annotations

import json

import pytest

from runners.supervisor.hangs import FIRST_STEP_FACTOR, SLOW_STEP_FACTOR, Watch
from tests.runners.supervised import Prepare, Supervise, supervise

__all__ = ["supervise"]


def step(number: int, rank: int = 0) -> bytes:
    event = {"parlab": 1, "t": 1.0, "rank": rank, "event": "step", "step": number}
    return json.dumps(event, separators=(",", ":")).encode() + b"\n"


def test_silence_counts_from_the_last_step_whichever_rank_made_it() -> None:
    watch = Watch(10, now=0)
    watch.see(step(1), now=5)
    watch.see(step(1, rank=1), now=7)
    assert watch.silent_for(16.9) is None
    assert watch.silent_for(17.5) == 10.5
    assert watch.last_step == 1


def test_the_first_step_may_take_longer_and_slow_steps_raise_the_limit() -> None:
    watch = Watch(10, now=0)
    assert watch.silent_for(10 * FIRST_STEP_FACTOR) is None
    assert watch.silent_for(10 * FIRST_STEP_FACTOR + 1)
    watch.see(step(1), now=90)
    watch.see(step(2), now=98)
    assert watch.silent_for(98 + 8 * SLOW_STEP_FACTOR) is None
    assert watch.silent_for(99 + 8 * SLOW_STEP_FACTOR)


def test_what_is_no_step_is_no_sign_of_life_and_a_pause_of_the_supervisors_own_is_no_silence() -> None:
    watch = Watch(10, now=0)
    watch.see(step(1), now=1)
    watch.see(b'still here\nx{"parlab":1,"event":"step","step":2}\n', now=5)
    assert watch.silent_for(12) == 11
    watch.pause(now=12)
    assert watch.silent_for(20) is None


def test_a_step_of_a_million_digits_does_no_harm() -> None:
    watch = Watch(10, now=0)
    watch.see(b'{"parlab":1,"event":"step","step":' + b"9" * 1_000_000 + b"}\n", now=1)
    assert watch.steps == 0


def test_without_a_limit_nothing_is_a_hang() -> None:
    watch = Watch(None, now=0)
    watch.see(step(1), now=0)
    assert watch.silent_for(1e9) is None


TWO_RANKS = """
    import faulthandler, json, os, signal, subprocess, sys, time
    if "RANK" not in os.environ:
        os.execve(sys.executable, [sys.executable, __file__], {{**os.environ, "RANK": "0"}})
    faulthandler.register(signal.SIGUSR1)
    rank = int(os.environ["RANK"])
    def tell(step):
        event = {{"parlab": 1, "t": time.time(), "rank": rank, "event": "step", "step": step}}
        os.write(1, json.dumps(event, separators=(",", ":")).encode() + b"\\n")
    def wait_for_the_other():
        {fate}
    if rank == 0:
        subprocess.Popen([sys.executable, __file__], env={{**os.environ, "RANK": "1"}})
        # Deaf to the question, as torchrun is: it must not be asked, for that would be its end.
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    # Both are there before a step counts: what starts late on a busy machine does not hang.
    open(f"ready-{{rank}}", "w").close()
    while not os.path.exists(f"ready-{{1 - rank}}"):
        time.sleep(0.01)
    tell(1)
    tell(2)
    wait_for_the_other()
"""


def test_a_run_that_hangs_ends_with_the_stack_of_every_rank(prepared: Prepare, supervise: Supervise) -> None:
    run = supervise(prepared(TWO_RANKS.format(fate="time.sleep(600)"), hang_timeout_s=1))
    final = run.ends()
    assert final.state == "failed"
    assert "s after step 2 (launcher.hang_timeout_s 1): " in final.reason
    for rank in (0, 1):
        assert f"rank {rank} is in wait_for_the_other (" in final.reason
        assert f"parlab: stacks of rank {rank}, process ".encode() in run.output()
        assert f"rank {rank}:" in final.traceback
    assert "raise hang_timeout_s if steps can take this long" in final.reason
    assert run.output().count(b"in wait_for_the_other") == 2
    assert run.training() == []


@pytest.mark.slow
def test_a_rank_that_is_stopped_is_named_as_such(prepared: Prepare, supervise: Supervise) -> None:
    fate = "os.kill(os.getpid(), signal.SIGSTOP) if rank == 1 else time.sleep(600)"
    final = supervise(prepared(TWO_RANKS.format(fate=fate), hang_timeout_s=1)).ends()
    assert "rank 1 gave no stack (it is stopped)" in final.reason
    assert "rank 0 is in wait_for_the_other" in final.reason


def test_a_run_that_goes_on_while_it_is_asked_is_left_alone(prepared: Prepare, supervise: Supervise) -> None:
    # Who is asked answers with a step.
    fate = "signal.signal(signal.SIGUSR1, lambda *_: tell(3)); time.sleep(2.5)"
    run = supervise(prepared(TWO_RANKS.format(fate=fate), hang_timeout_s=1))
    final = run.ends()
    assert (final.state, final.reason) == ("finished", "")


@pytest.mark.slow
def test_a_run_that_waits_for_a_full_disk_does_not_hang(prepared: Prepare, supervise: Supervise) -> None:
    script = """
        import json, os
        event = {"parlab": 1, "t": 1.0, "rank": 0, "event": "step", "step": 1}
        os.write(1, json.dumps(event, separators=(",", ":")).encode() + b"\\n")
        while True:
            print("y" * 10_000)
    """
    run = supervise(prepared(script, spool_limit_mib=1, disk_grace_s=3, hang_timeout_s=1))
    final = run.ends()
    assert final.reason.startswith("output cannot be written")
