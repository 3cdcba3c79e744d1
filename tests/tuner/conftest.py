from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from parlab.lab.models import Config, Node, Run
from parlab.tuner import services
from parlab.tuner.models import Study

DATA: dict[str, Any] = {
    "model": {"num_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "sequence_length": 16, "vocab_size": 64},
    "train": {"global_batch_size": 4, "micro_batch_size": 1, "iterations": 12, "warmup_steps": 2},
    "parallel": {"engine": "zero", "data_parallel_size": 2},
    "cluster": {"device": "cpu"},
}
SWEEP: dict[str, list[Any]] = {
    "parallel.zero_stage": [0, 1],
    "train.micro_batch_size, train.global_batch_size": [[1, 2], [2, 4], [4, 8], [8, 16]],
}


@pytest.fixture
def node(db: None) -> Node:
    hardware = {"cpu_cores": 2, "memory_bytes": 2**33, "gpus": []}
    return Node.objects.create(name="n1", hardware=hardware, last_heartbeat_at=timezone.now())


@pytest.fixture
def space_config(make_config: Callable[..., Config], node: Node) -> Config:
    return make_config(data=DATA, sweep=SWEEP)


@pytest.fixture
def make_study(space_config: Config, user: User) -> Callable[..., Study]:
    def make(**options: Any) -> Study:
        return services.study_create(config=space_config, user=user, **options)

    return make


def finish(run: Run, seconds: float | None = None, state: str = "finished") -> None:
    """End a run as a node would have ended it."""
    if seconds is None:
        seconds = truth(run.resolved)
    is_good = state == "finished"
    summary = {"step_time_s": {"median": seconds, "p10": seconds * 0.99, "p90": seconds * 1.01}, "steps": {"count": 10}}
    Run.objects.filter(pk=run.pk).update(
        state=state,
        step_time_s=seconds if is_good else None,
        summary=summary if is_good else {},
        ended_at=timezone.now(),
    )


def truth(resolved: dict[str, Any]) -> float:
    stage, size = resolved["parallel"]["zero_stage"], resolved["train"]["micro_batch_size"]
    return float(0.02 * (1 + stage) + 0.01 * size * (2 if size > 4 else 1))


def play(study: Study, end: Callable[[Run], None] = finish, rounds: int = 60) -> Study:
    """Advance a study as the server would, ending each run that it launches."""
    for _ in range(rounds):
        study = services.study_advance(study=study)
        if study.state != Study.State.RUNNING:
            return study
        for run in Run.objects.active():
            end(run)
    raise AssertionError(f"the study did not end in {rounds} rounds")
