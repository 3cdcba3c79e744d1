"""How a run ended, said from its exit code and what it printed."""

from __future__ import annotations

import json

import pytest

from runners.supervisor.verdict import MAX_REASON_CHARS, TAIL_BYTES, Evidence, Verdict, last_traceback
from runners.wire.protocol import RunState


def event(name: str, rank: int = 0, **fields: object) -> bytes:
    return json.dumps({"parlab": 1, "t": 1.0, "rank": rank, "event": name, **fields}, separators=(",", ":")).encode()


def evidence(*output: bytes) -> Evidence:
    seen = Evidence()
    for piece in output:
        seen.see(piece)
    return seen


TORCHRUN = b"""Traceback (most recent call last):
  File "/venv/lib/torch/distributed/run.py", line 900, in <module>
    main()
  File "/venv/lib/torch/distributed/launcher/api.py", line 277, in launch_agent
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-20_11:00:00
  host      : node
  rank      : 1 (local_rank: 1)
  exitcode  : %d (pid: 4711)
  error_file: <N/A>
============================================================
"""
VALUE_ERROR = b"""Traceback (most recent call last):
  File "train.py", line 3, in <module>
    step()
  File "train.py", line 1, in step
    raise ValueError("no good")
ValueError: no good
"""


def test_exit_code_zero_is_finished_whatever_was_printed() -> None:
    assert evidence(VALUE_ERROR).verdict(0) == Verdict(RunState.FINISHED, "")


def test_an_oom_event_is_out_of_memory_with_its_sizes_whatever_the_exit_code() -> None:
    line = event("oom", rank=3, phase="forward", requested_bytes=2 << 20, free_bytes=1 << 20, total_bytes=8 << 30)
    verdict = evidence(b"log\n" + line + b"\n").verdict(1)
    assert verdict.state == RunState.OOM
    assert verdict.reason == "out of memory on rank 3 in forward: requested 2.0 MiB, free 1.0 MiB, of 8,192.0 MiB"


@pytest.mark.parametrize(("output", "exit_code"), [(b"", 77), (TORCHRUN % 77, 1)])
def test_exit_code_77_is_out_of_memory_without_an_event_too(output: bytes, exit_code: int) -> None:
    assert evidence(output).verdict(exit_code).state == RunState.OOM


def test_the_first_error_event_explains_a_failure() -> None:
    first = event("error", rank=2, traceback=VALUE_ERROR.decode())
    second = event("error", rank=0, traceback="Traceback (most recent call last):\n  x\nConnectionError: peer is gone")
    verdict = evidence(first + b"\n", second + b"\n" + TORCHRUN % 1).verdict(1)
    assert verdict.state == RunState.FAILED
    assert verdict.reason == "ValueError: no good on rank 2 (exit code 1)"
    assert verdict.traceback == VALUE_ERROR.decode().strip()


def test_events_of_other_ranks_between_the_lines_of_a_traceback_do_not_end_it() -> None:
    lines = VALUE_ERROR.splitlines(keepends=True)
    mixed = b"".join([*lines[:2], event("step", rank=1, step=3) + b"\n", *lines[2:]])
    assert evidence(mixed).verdict(1).traceback == VALUE_ERROR.decode().strip()


def test_the_last_traceback_that_is_not_torchruns_explains_a_failure_without_events() -> None:
    verdict = evidence(
        b"Traceback (most recent call last):\n  x\nKeyError: handled\n", VALUE_ERROR, TORCHRUN % 1
    ).verdict(1)
    assert verdict.reason == "ValueError: no good on rank 1 (exit code 1)"
    assert verdict.traceback == VALUE_ERROR.decode().strip()


def test_a_traceback_that_torch_marks_with_its_rank_is_read_without_the_marks() -> None:
    marked = b"".join(b"[rank5]: " + line + b"\n" for line in VALUE_ERROR.splitlines())
    verdict = evidence(b"[rank4]: something else\n" + marked).verdict(1)
    assert verdict.reason == "ValueError: no good on rank 5 (exit code 1)"
    assert verdict.traceback == VALUE_ERROR.decode().strip()


def test_a_message_of_several_lines_is_named_by_its_first() -> None:
    text = "Traceback (most recent call last):\n  File\n    x\nValueError: first\nsecond\n"
    line = event("error", traceback=text)
    assert evidence(line).verdict(1).reason == "ValueError: first on rank 0 (exit code 1)"


def test_a_killed_process_comes_with_a_hint_about_memory() -> None:
    verdict = evidence(b"step 1\n").verdict(-9)
    assert verdict.state == RunState.FAILED
    assert "SIGKILL" in verdict.reason
    assert "memory" in verdict.reason
    assert "on rank 1" in evidence(TORCHRUN % -9).verdict(1).reason


def test_a_failure_without_a_traceback_says_where_to_look() -> None:
    assert evidence(b"bad luck\n").verdict(3).reason == "exit code 3 and no traceback; see the end of the output"
    assert "signal 200" in evidence().verdict(-200).reason


@pytest.mark.parametrize(
    "line",
    [
        b'{"parlab":1,"event":"oom"',
        b'{"parlab":1,"event":"error","traceback":5}',
        b'{"parlab":1,"event":"oom","rank":[],"requested_bytes":"much"}',
        b'{"parlab":' + b"[" * 100_000 + b'"oom"',
        b'{"parlab":"oom"}',
        b'  {"parlab":1,"event":"oom"}',
    ],
)
def test_hostile_lines_do_no_harm(line: bytes) -> None:
    verdict = evidence(line + b"\n", b"\xff\xfe\x00binary\n").verdict(1)
    assert verdict.state in (RunState.FAILED, RunState.OOM)


def test_a_reason_stays_short() -> None:
    text = "Traceback (most recent call last):\n  x\nValueError: " + "y" * 10_000
    assert len(evidence(event("error", traceback=text)).verdict(1).reason) == MAX_REASON_CHARS


def test_memory_stays_bounded_however_much_is_printed() -> None:
    seen = Evidence()
    piece = (b'{"parlab":1,"rank":0,"event":"step"}\n' + b"x" * 3000 + b"\n") * 80
    for _ in range(400):
        seen.see(piece)
    assert len(seen._tail) <= 2 * TAIL_BYTES


def test_a_line_of_another_rank_is_no_exception() -> None:
    text = "Traceback (most recent call last):\n  File x\nrank 0 is ready\n    raise\nValueError: no good\nrank 2\n"
    traceback = "Traceback (most recent call last):\n  File x\n    raise\nValueError: no good"
    assert last_traceback(text, 1) == (1, traceback)


def test_no_traceback_is_found_where_there_is_none() -> None:
    assert last_traceback("nothing here", 3) == (3, "")


def summary(*ranks: tuple[int, int]) -> bytes:
    """Write torchrun's summary of (rank, exit code), the first observed one first."""
    block = "[0]:\n  time      : x\n  host      : n7\n  rank      : {} (local_rank: {})\n  exitcode  : {} (pid: 1)\n"
    first, *others = [block.format(rank, rank, code) for rank, code in ranks]
    listed = f"Failures:\n{''.join(others)}" if others else "Failures:\n  <NO_OTHER_FAILURES>\n"
    return f"train.py FAILED\n---\n{listed}---\nRoot Cause (first observed failure):\n{first}===\n".encode()


def lost(rank: int) -> bytes:
    """Write what an engine prints when another rank is gone."""
    text = "Traceback (most recent call last):\n  x\nRuntimeError: Connection closed by peer"
    return event("error", rank=rank, traceback=text, reason=f"rank {rank} lost its connection to another rank") + b"\n"


def test_the_dead_rank_is_named_with_host_and_signal_whoever_complained_first() -> None:
    verdict = evidence(lost(0), lost(2), summary((0, 1), (1, -11), (2, 1))).verdict(1)
    assert verdict.reason.startswith("killed by signal 11 (SIGSEGV) on rank 1 of host n7; a library crashed")
    assert "Connection closed by peer" in verdict.traceback


def test_a_rank_that_ended_without_a_word_is_the_cause_where_the_others_only_lost_it() -> None:
    assert evidence(lost(0), summary((0, 1), (1, 3))).verdict(1).reason.startswith("exit code 3 on rank 1 of host n7")
    own = event("error", rank=0, traceback="Traceback (most recent call last):\n  x\nValueError: mine") + b"\n"
    assert evidence(own, lost(1), summary((0, 1), (2, 3))).verdict(1).reason.startswith("ValueError: mine on rank 0")


def test_ranks_that_only_lost_another_one_say_so_where_nobody_names_it() -> None:
    assert evidence(lost(0), lost(1)).verdict(1).reason == "rank 0 lost its connection to another rank"


def test_a_rank_that_nccl_aborted_because_it_waited_in_vain_says_so() -> None:
    watchdog = (
        b"[rank1]:[E1120 11:00:00.000000000 ProcessGroupNCCL.cpp:688] [PG ID 2 PG GUID 5 Rank 0] Watchdog caught"
        b" collective operation timeout: WorkNCCL(SeqNum=31, OpType=ALLREDUCE, NumelIn=8, NumelOut=8,"
        b" Timeout(ms)=60000) ran for 60010 milliseconds before timing out.\n"
    )
    verdict = evidence(watchdog, TORCHRUN % -6).verdict(1)
    assert verdict.reason == (
        "rank 1 waited longer than 60 s for another rank, in NCCL's ALLREDUCE; see in the log which rank stopped,"
        " or raise launcher.collective_timeout_s"
    )
    assert "rank 1 of host node" in evidence(watchdog, TORCHRUN % -9).verdict(1).reason


def test_what_the_node_itself_says_stands_as_it_is() -> None:
    message = "network.apply emulate: emulated links require root; start the daemon as root"
    assert evidence(event("error", rank=-1, traceback=message) + b"\n").verdict(2).reason == message


@pytest.mark.parametrize(
    ("code", "is_consequence"),
    [pytest.param(-9, False, id="it died by itself"), pytest.param(-15, True, id="the launcher ended it")],
)
def test_a_rank_that_died_by_itself_is_a_cause_even_if_the_launcher_blames_another_node(
    code: int, is_consequence: bool
) -> None:
    elsewhere = "a rank of node 0 of the run ended before; see the log of that node"
    output = event("death", rank=1, code=code) + b"\n", event("error", rank=-2, traceback=elsewhere, reason=elsewhere)
    assert evidence(*output).verdict(1).is_consequence is is_consequence


def test_what_torchrun_ended_itself_is_no_cause() -> None:
    own = event("error", rank=0, traceback="Traceback (most recent call last):\n  x\nValueError: mine") + b"\n"
    assert evidence(own, summary((1, -15), (0, 1))).verdict(1).reason.startswith("ValueError: mine on rank 0")


def test_a_refused_configuration_is_one_reason_however_many_ranks_say_it() -> None:
    first, second = ("parallel.zero_stage", "stage 5 is none; use 3"), ("cluster.device", "no GPU; use cpu")
    refusals = [event("refused", rank=r, field=f, value=5, message=m) for r in (1, 0) for f, m in (first, second)]
    verdict = evidence(b"\n".join(refusals) + b"\n", summary((1, 2), (0, 2))).verdict(1)
    assert verdict.state == RunState.FAILED
    assert verdict.reason == "parallel.zero_stage: stage 5 is none; use 3; cluster.device: no GPU; use cpu"


def test_a_death_that_a_rank_of_another_launcher_told_names_it_too() -> None:
    deaths = [event("death", rank=2, host="n7", code=-9) + b"\n", event("death", rank=0, host="n7", code=1) + b"\n"]
    verdict = evidence(lost(0), *deaths).verdict(137)
    assert verdict.reason.startswith("killed by signal 9 (SIGKILL) on rank 2 of host n7;")
