"""Ranks of an engine as processes of their own, which a test warns or kills while they train."""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from parlab.embedded import free_port
from runners.config import RunConfig
from runners.wire.protocol import EVENT_PREFIX
from tests.engines.ranks import CONTEXT
from tests.patience import TRAINING_S, wait_for

CONTEXT.set_forkserver_preload(["tests.engines.checkpointed", "tests.engines.preloaded"])

WARNING = signal.SIGUSR2


class Ranks:
    """All ranks of one attempt."""

    def __init__(self, data: Mapping[str, Any], folder: Path, attempt: int = 1, **variables: str) -> None:
        config = RunConfig.model_validate(data)
        path = folder.parent / f"config-{attempt}.json"
        path.write_text(json.dumps(data))
        shared = {
            "OMP_NUM_THREADS": "1",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "WORLD_SIZE": str(config.world_size),
            "LOCAL_WORLD_SIZE": str(config.world_size),
            "PARLAB_CHECKPOINT_DIR": str(folder),
            "PARLAB_ATTEMPT": str(attempt),
            "PARLAB_WARN_SIGNAL": WARNING.name,
            **variables,
        }
        self.lines: list[str] = []
        self.processes, self._readers = [], list[threading.Thread]()
        for rank in range(config.world_size):
            source, target = CONTEXT.Pipe(duplex=False)
            environment = {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            process = CONTEXT.Process(target=_rank, args=(config.engine.module, str(path), environment, target))
            process.start()
            target.close()
            self.processes.append(process)
            self._readers.append(threading.Thread(target=self._read, args=(source,)))
            self._readers[-1].start()

    def _read(self, source: Any) -> None:
        with os.fdopen(os.dup(source.fileno()), errors="replace") as lines:
            source.close()
            for line in lines:
                self.lines.append(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def text(self) -> str:
        return "".join(self.lines)

    def events(self, name: str, **fields: Any) -> list[dict[str, Any]]:
        events = [json.loads(line) for line in list(self.lines) if line.encode().startswith(EVENT_PREFIX)]
        return [
            event for event in events if event["event"] == name and all(event.get(key) == fields[key] for key in fields)
        ]

    def losses(self) -> dict[int, float]:
        """Return step -> loss, of the first rank that reports one."""
        steps = [event for event in self.events("step") if "loss" in event]
        return {event["step"]: event["loss"] for event in steps if event["rank"] == steps[0]["rank"]}

    def wait_for_step(self, step: int) -> None:
        wait_for(lambda: max(self.losses(), default=0) >= step or self._has_ended(), f"step {step}")
        assert not self._has_ended(), self.text

    def wait_for_save(self, step: int = 0) -> dict[str, Any]:
        def saves() -> list[dict[str, Any]]:
            return [event for event in self.events("checkpoint", kind="save") if event["step"] >= step]

        wait_for(lambda: saves() or self._has_ended(), f"checkpoint of step {step}")
        assert saves(), self.text
        return saves()[0]

    def _has_ended(self) -> bool:
        return any(process.exitcode is not None for process in self.processes)

    def warn(self, rank: int = 0, number: int = WARNING) -> None:
        pid = self.processes[rank].pid
        assert pid is not None
        os.kill(pid, number)

    def kill(self) -> None:
        """End all at once, as the loss of a node does."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()
        for reader in self._readers:
            reader.join()

    def ended(self) -> list[int]:
        """Wait for the end; return the exit codes."""
        for process in self.processes:
            process.join(TRAINING_S)
        for reader in self._readers:
            reader.join()
        return [-1 if process.exitcode is None else process.exitcode for process in self.processes]


def _rank(module: str, config: str, environment: Mapping[str, str], output: Any) -> None:
    """Run `python -m MODULE --config CONFIG`, with the pipe as its standard output and error."""
    for descriptor in (1, 2):
        os.dup2(output.fileno(), descriptor)
    output.close()
    os.environ.update(environment)
    sys.argv = [module, "--config", config]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
