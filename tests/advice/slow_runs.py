"""Runs of real engines, stored as the ingest stores them, so that their advice can be read."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from parlab.ingest.batches.services import batch_apply
from parlab.ingest.summaries.attempt_summaries import attempt_summarise
from parlab.lab.models import Attempt, Config, Node, Run
from runners.config.engines import ENGINES
from runners.node.abilities import ALLOWED_COMMANDS
from runners.wire.protocol import Batch
from tests.conftest import place
from tests.engines.started import run_behind_links, run_engine

HARDWARE = {"cpu_cores": 2, "memory_bytes": 16 << 30, "gpus": []}
STOPPED_S, RUNNING_S = 0.06, 0.02
MakeConfig = Callable[..., Config]
MakeAttempt = Callable[..., Attempt]


def printed_by(data: Mapping[str, Any], directory: Path, slow_rank: int | None = None) -> str:
    """Run an engine to its end, behind emulated links where the configuration has them; return its output.

    `slow_rank` gets a fourth of its time.
    """
    if (data.get("network") or {}).get("apply") == "emulate":
        return run_behind_links(data, directory)
    is_alone = ENGINES[data["parallel"]["engine"]].starts_its_own_ranks
    allowed = directory / "allowed.json"
    allowed.write_text(json.dumps([data["command"]["argv"]] if "command" in data else []))
    with _slowed(slow_rank):
        done = run_engine(
            data, directory, processes=0 if is_alone else _ranks(data), variables={ALLOWED_COMMANDS: str(allowed)}
        )
    assert done.code == 0, done.text
    return done.text


def _ranks(data: Mapping[str, Any]) -> int | None:
    """Return the number of devices of a sharding; None where the layout has it."""
    stages = (data.get("sharding") or {}).get("device_mapping") or {}
    return len({device for stage in stages.values() for device in stage.values()}) or None


@contextmanager
def _slowed(rank: int | None) -> Iterator[None]:
    """Stop a rank of a training below this process again and again."""
    if rank is None:
        yield
        return
    is_over = threading.Event()
    thread = threading.Thread(target=_stop_again_and_again, args=(rank, is_over))
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _stop_again_and_again(rank: int, is_over: threading.Event) -> None:
    process = None
    while not is_over.wait(RUNNING_S):
        process = process or _process_of(rank)
        if process is None:
            continue
        try:
            process.send_signal(signal.SIGSTOP)
            is_over.wait(STOPPED_S)
            process.send_signal(signal.SIGCONT)
        except psutil.Error:
            return


def _process_of(rank: int) -> psutil.Process | None:
    """Return the process of a rank; torchrun names it in the environment."""
    for process in psutil.Process().children(recursive=True):
        try:
            if process.environ().get("RANK") == str(rank):
                return process
        except psutil.Error:
            continue
    return None


def stored_run(data: dict[str, Any], output: str, make_config: MakeConfig, make_attempt: MakeAttempt) -> Run:
    """Store the output of a run that finished."""
    attempt = make_attempt(config=make_config(data=data))
    node, _ = Node.objects.get_or_create(name="n1")
    place(attempt, node)
    Attempt.objects.filter(pk=attempt.pk).update(environment=HARDWARE)
    raw = output.encode()
    batch_apply(batch=Batch(run=attempt.run_id, attempt=1, node="n1", sequence=0, next_sequence=len(raw), output=raw))
    attempt.refresh_from_db()
    attempt_summarise(attempt=attempt)
    Run.objects.filter(pk=attempt.run_id).update(state="finished")
    return Run.objects.select_related("experiment", "config").get(pk=attempt.run_id)
