"""Rows for the pages: a measured run in any state, figures from elsewhere, people who may and may not."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from io import StringIO
from typing import Any

import pytest
import zstandard
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission, User
from django.test import Client

from parlab.formats import read_document
from parlab.lab.models import Attempt, Config, Experiment, Run, Source, SourceChunk
from parlab.lab.services import storable
from parlab.pages.reads.home import cards
from runners.wire.protocol import RunState

SWEEP: dict[str, list[Any]] = {"parallel.schedule": ["gpipe", "1f1b"], "train.micro_batch_size": [1, 2]}


def summary(step_time_s: float, **more: Any) -> dict[str, Any]:
    """A summary as the ingest stores it, of two ranks and a global batch of 4 samples of 16 tokens."""
    return {
        "step_time_s": {"median": step_time_s, "p10": 0.9 * step_time_s, "p90": 1.2 * step_time_s},
        "samples_per_s": 4 / step_time_s,
        "tokens_per_s": 64 / step_time_s,
        "memory_peak_bytes": {"min": 2**27, "max": 2**28, "by_rank": {"0": 2**28, "1": 2**27}},
        "timers_s": {"forward-compute": {"median": step_time_s / 3, "min": step_time_s / 4, "max": step_time_s / 2}},
        "basis": "median of 3 steps (2 to 4), slowest rank of each; step 1 left out as warm-up",
        **more,
    }


def finish(attempt: Attempt, step_time_s: float = 0.5, state: str = RunState.FINISHED, **more: Any) -> Run:
    """Bring an attempt and its run to an end with numbers."""
    numbers = summary(step_time_s)
    Attempt.objects.filter(pk=attempt.pk).update(state=state, summary=numbers, last_step=4)
    Run.objects.filter(pk=attempt.run_id).update(
        state=state,
        summary=numbers,
        step_time_s=step_time_s,
        samples_per_s=numbers["samples_per_s"],
        tokens_per_s=numbers["tokens_per_s"],
        memory_max_bytes=2**28,
        **more,
    )
    return Run.objects.get(pk=attempt.run_id)


@pytest.fixture(autouse=True)
def no_cards() -> None:
    """Cards of experiments that another test made have other numbers."""
    cards.forget()


@pytest.fixture
def viewer(user: User) -> Client:
    """A browser of a viewer."""
    person = get_user_model().objects.create_user("viewer", password="only looking here")
    client = Client()
    client.force_login(person)
    return client


@pytest.fixture
def allowed() -> Callable[..., Client]:
    """Make a browser of a person with the named permissions: allowed("add_run")."""

    def make(*codenames: str) -> Client:
        person = get_user_model().objects.create_user("-".join(codenames), password="some rights only")
        person.user_permissions.set(Permission.objects.filter(codename__in=codenames))
        client = Client()
        client.force_login(person)
        return client

    return make


@pytest.fixture
def swept(make_config: Callable[..., Config]) -> Config:
    """A config whose four points can all run."""
    return make_config(sweep=SWEEP)


@pytest.fixture
def four_runs(swept: Config, make_attempt: Callable[..., Attempt]) -> list[Run]:
    """The four points of the sweep, finished; the third is the fastest."""
    runs = []
    for point, step_time_s in zip(swept.points(), (0.5, 0.4, 0.2, 0.3), strict=True):
        assert point.config is not None
        attempt = make_attempt(config=swept, point=point.values)
        runs.append(finish(attempt, step_time_s, resolved=point.config.resolved()))
    return runs


@pytest.fixture
def slow_run(make_config: Callable[..., Config], make_attempt: Callable[..., Attempt], user: User) -> Run:
    """A run on two replicas that recomputes all layers without need."""
    config = make_config(
        data={
            "model": {"num_layers": 4, "hidden_size": 256, "num_attention_heads": 4, "sequence_length": 128},
            "train": {"global_batch_size": 16, "micro_batch_size": 8, "recompute": "full", "iterations": 4},
            "parallel": {"engine": "megatron", "pipeline_parallel_size": 1, "data_parallel_size": 2},
        }
    )
    attempt = make_attempt(config=config)
    Attempt.objects.filter(pk=attempt.pk).update(environment={"cpu_cores": 8, "memory_bytes": 32 << 30, "gpus": []})
    (point,) = config.points()
    assert point.config is not None
    run = finish(attempt, 0.5, resolved=point.config.resolved())
    timers = {
        name: {"median": s, "min": s, "max": s, "by_rank": {"0": s, "1": s}}
        for name, s in (("forward-compute", 0.1), ("backward-compute", 0.3), ("optimizer", 0.02))
    }
    run.summary = {**run.summary, "timers_s": timers}
    run.save()
    return run


@pytest.fixture
def make_source(experiment: Experiment, user: User) -> Callable[..., Source]:
    """Keep a file as an import does, in chunks of a few bytes: make_source(b"# Title", name="notes.md")."""

    def make(content: bytes = b"some\nlines\nof\ntext\n", *, name: str = "train.log") -> Source:
        document = read_document(StringIO(content.decode("utf-8", "replace")), file=name)
        source = Source.objects.create(
            experiment=experiment,
            name=name,
            format=document.format,
            sha256=sha256(content).hexdigest(),
            size=len(content),
            document=storable.json(document.model_dump(mode="json")),
            created_by=user,
        )
        for position in range(0, len(content), 7):
            piece = content[position : position + 7]
            SourceChunk.objects.create(
                source=source, position=position, size=len(piece), data=zstandard.compress(piece)
            )
        return source

    return make
