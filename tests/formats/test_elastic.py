"""Restarts within a launch, from the lines of torchrun's agent, torchft and NVRx."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from parlab.formats.elastic import marks, restarts

TORCHRUN = """
I1127 08:00:00.000000 7 torch/distributed/elastic/agent/server/api.py:707] [default] Rendezvous'ing worker group
I1127 08:00:02.000000 7 torch/distributed/elastic/agent/server/api.py:553] [default] Rendezvous complete for workers. Result:
  restart_count=0
  group_world_size=2
  global_world_sizes=[8, 8, 8, 8]
I1127 08:00:02.100000 7 torch/distributed/elastic/agent/server/api.py:715] [default] Starting worker group
E1127 08:10:00.000000 7 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: -9) local_rank: 1 (pid: 9) of binary: python
I1127 08:10:00.100000 7 torch/distributed/elastic/agent/server/api.py:942] [default] Worker group FAILED. 2/3 attempts left; will restart worker group
I1127 08:10:00.200000 7 torch/distributed/elastic/agent/server/api.py:733] [default] Stopping worker group
I1127 08:10:05.000000 7 torch/distributed/elastic/agent/server/api.py:707] [default] Rendezvous'ing worker group
I1127 08:10:35.000000 7 torch/distributed/elastic/agent/server/api.py:553] [default] Rendezvous complete for workers. Result:
  restart_count=1
  global_world_sizes=[4, 4, 4, 4]
I1127 08:10:35.500000 7 torch/distributed/elastic/agent/server/api.py:715] [default] Starting worker group
"""  # noqa: E501
TORCHFT = """
[titan] 2026-06-07 16:30:00,000 - torchft.manager - INFO - [ft_1:f7/0 - step 0] reconfiguring for quorum_id=1 store_prefixed_addr='h:1/torchft/1/0'
[titan] 2026-06-07 16:30:10,000 - torchft.manager - INFO - [ft_1:f7/0 - step 0] should_commit=True enough_replicas=True, errored=None
[titan] 2026-06-07 16:34:11,000 - torchft.manager - ERROR - [ft_1:f7/0 - step 10] got exception in future -- skipping remaining: aborted
[titan] 2026-06-07 16:49:59,245 - torchft.manager - INFO - [ft_1:a9/0 - step 0] reconfiguring for quorum_id=12 store_prefixed_addr='h:1/torchft/12/0'
[titan] 2026-06-07 16:49:59,928 - torchft.manager - INFO - [ft_1:a9/0 - step 0] healing required, fetching checkpoint metadata from recover_src_manager_address='http://h:1' max_step=10
[titan] 2026-06-07 16:50:00,000 - torchft.manager - INFO - [ft_1:a9/0 - step 0] fetching checkpoint from recover_src_replica_rank=0 with checkpoint_metadata='x'
[titan] 2026-06-07 16:50:09,000 - torchft.manager - INFO - [ft_1:a9/0 - step 10] Loaded state dict.
[titan] 2026-06-07 16:50:19,000 - torchft.manager - INFO - [ft_1:a9/0 - step 10] should_commit=True enough_replicas=True, errored=None
"""  # noqa: E501
# Printed by torchft 0.2.0 for two replica groups of one rank on a CPU, of which the second came later and was killed.
TORCHFT_QUORUMS = """
2026-11-27T12:26:09.524 [INFO] [torchft::manager] - [Replica g0] got lighthouse quorum LighthouseQuorumResponse { quorum: Some(Quorum { quorum_id: 1, participants: [QuorumMember { replica_id: "g0:be", address: "http://vm:43449", store_address: "127.0.0.1:43255", step: 0, world_size: 1, shrink_only: false, commit_failures: 0, data: "" }], created: Some(Timestamp { seconds: 1795782369, nanos: 514556825 }) }) }
2026-11-27 12:26:09,525 INFO torchft.manager: [g0:be/0 - step 0] reconfiguring for quorum_id=1 store_prefixed_addr='127.0.0.1:43255/torchft/1/0'
2026-11-27 12:26:10,411 INFO torchft.manager: [g0:be/0 - step 1] should_commit=True enough_replicas=True, errored=None
2026-11-27T12:26:11.173 [INFO] [torchft::manager] - [Replica g0] got lighthouse quorum LighthouseQuorumResponse { quorum: Some(Quorum { quorum_id: 2, participants: [QuorumMember { replica_id: "g0:be", step: 2 }, QuorumMember { replica_id: "g1:b5", step: 0 }], created: None }) }
2026-11-27 12:26:11,174 INFO torchft.manager: [g0:be/0 - step 2] reconfiguring for quorum_id=2 store_prefixed_addr='127.0.0.1:43255/torchft/2/0'
2026-11-27 12:26:11,182 INFO torchft.manager: [g0:be/0 - step 2] peers need recovery from us [1]
2026-11-27 12:26:11,410 INFO torchft.manager: [g0:be/0 - step 2] should_commit=True enough_replicas=True, errored=None
2026-11-27T12:26:12.173 [INFO] [torchft::manager] - [Replica g0] got lighthouse quorum LighthouseQuorumResponse { quorum: Some(Quorum { quorum_id: 2, participants: [QuorumMember { replica_id: "g0:be", step: 3 }, QuorumMember { replica_id: "g1:b5", step: 3 }], created: None }) }
2026-11-27 12:26:12,410 INFO torchft.manager: [g0:be/0 - step 3] should_commit=True enough_replicas=True, errored=None
2026-11-27T12:26:16.718 [INFO] [torchft::manager] - [Replica g0] got lighthouse quorum LighthouseQuorumResponse { quorum: Some(Quorum { quorum_id: 3, participants: [QuorumMember { replica_id: "g0:be", step: 6 }], created: None }) }
2026-11-27 12:26:16,721 INFO torchft.manager: [g0:be/0 - step 6] reconfiguring for quorum_id=3 store_prefixed_addr='127.0.0.1:43255/torchft/3/0'
2026-11-27 12:26:16,790 INFO torchft.manager: [g0:be/0 - step 6] should_commit=True enough_replicas=True, errored=None
"""  # noqa: E501
# Printed by nvidia-resiliency-ext 0.4.1 for two ranks on a CPU, of which one failed.
NVRX = """
2026-11-27 12:28:40,000 | INFO | nvidia_resiliency_ext.inprocess.wrap | starting
2026-11-27 12:28:43,886 | ERROR | nvidia_resiliency_ext.inprocess.wrap | rank=1 fn_ex: RuntimeError('rank 1 fails')
2026-11-27 12:28:44,987 | WARNING | nvidia_resiliency_ext.inprocess.wrap | rank=1 term_ex: RankShouldRestart('Interruption.EXCEPTION on ranks={1}') <- RuntimeError('rank 1 fails')
2026-11-27 12:28:44,987 | INFO | nvidia_resiliency_ext.inprocess.wrap | rank=1 restart_ex: HealthCheckPassed() <- RankShouldRestart('Interruption.EXCEPTION on ranks={1}') <- RuntimeError('rank 1 fails')
"""  # noqa: E501


def read(text: str) -> list[tuple[float | None, str]]:
    return [(None, line) for line in text.strip().splitlines()]


def test_a_restart_of_torchrun_has_its_times_and_fewer_ranks() -> None:
    (restart,) = restarts(marks(read(TORCHRUN)))
    assert restart.source == "torchrun"
    assert restart.ranks == (8, 4)
    assert restart.left_s is not None
    assert restart.met_s is not None
    assert round(restart.left_s - restart.noticed_s, 3) == 5.0
    assert round(restart.met_s - restart.noticed_s, 3) == 35.5
    assert restart.loaded_s is None
    assert "exitcode: -9" in restart.reason


def test_fifteen_minutes_of_torchft_are_told_apart() -> None:
    (restart,) = restarts(marks(read(TORCHFT)))
    assert restart.source == "torchft"
    times = (restart.left_s, restart.met_s, restart.loaded_s, restart.committed_s)
    assert [round(at - restart.noticed_s, 3) for at in times if at is not None] == [948.245, 948.928, 958.0, 968.0]
    assert "got exception in future" in restart.reason


def test_replicas_that_come_and_go_are_counted_by_torchfts_quorums() -> None:
    came, went = restarts(marks(read(TORCHFT_QUORUMS)))
    assert (came.ranks, went.ranks) == ((1, 2), (2, 1))
    assert came.committed_s is not None
    assert round(came.committed_s - came.noticed_s, 3) == 0.236


def test_an_in_process_restart_of_nvrx_is_seen() -> None:
    (restart,) = restarts(marks(read(NVRX)))
    assert restart.source == "NVRx"
    assert restart.left_s is not None
    assert round(restart.left_s - restart.noticed_s, 3) == 1.101
    assert restart.reason == "rank=1 fn_ex: RuntimeError('rank 1 fails')"


def test_a_step_tells_two_restarts_of_nvrx_apart() -> None:
    once = NVRX.strip().splitlines()
    twice = [(1_000.0 * again, line) for again in (1, 2) for line in once]
    assert [restart.noticed_s for restart in restarts(marks(twice), [900.0, 1_500.0])] == [1_000.0, 2_000.0]
    assert len(restarts(marks(twice), [900.0])) == 1, "no rank has made a step between them"


def test_a_launch_without_a_restart_has_none() -> None:
    first = TORCHRUN.partition("E1127")[0]
    assert restarts(marks(read(first))) == []
    assert restarts(marks(read(TORCHFT.partition("[titan] 2026-06-07 16:34")[0]))) == []
    assert restarts(marks([(None, "step: 1 loss: 2.0"), (None, "Rendezvous is a nice word")])) == []


def test_a_failure_that_ends_the_launch_is_no_restart() -> None:
    failed = TORCHRUN.partition("I1127 08:10:00.1")[0]
    assert restarts(marks(read(failed))) == []


def test_the_time_at_which_a_line_was_printed_counts_more_than_the_one_in_it() -> None:
    line = "2026-06-07 10:05:09,000 INFO rank=3 restart_ex: HealthCheckPassed"
    assert [mark.time for mark in marks([(77.0, line)])] == [77.0]


DIES_ONCE = """
import os, time
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["RANK"] == "1":
    os.kill(os.getpid(), 9)
time.sleep(0.2)
"""


@pytest.mark.slow
def test_the_agent_of_the_installed_torch_prints_lines_that_are_read(tmp_path: Path) -> None:
    script = tmp_path / "dies_once.py"
    script.write_text(DIES_ONCE)
    options = ["--nnodes=1", "--nproc-per-node=2", "--max-restarts=2", "--standalone", "--local-addr=127.0.0.1"]
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *options, str(script)],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "LOGLEVEL": "INFO", "OMP_NUM_THREADS": "1"},
    )
    (restart,) = restarts(marks(read(done.stdout + done.stderr)))
    assert restart.ranks == (2, 2)
    assert restart.left_s is not None
    assert restart.met_s is not None
    assert restart.noticed_s <= restart.left_s <= restart.met_s
