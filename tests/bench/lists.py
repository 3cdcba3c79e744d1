"""Server time for a page of the list of experiments, with ten thousand runs."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from django.contrib.auth import get_user_model
from django.contrib.auth.models import User
from django.test import Client, override_settings
from django.utils import timezone

from parlab.lab.models import Config, Experiment, Run, Tag
from runners.config import RunConfig, digest
from tests.bench.result import Result, Scale

RUNS = 10_000
RUNS_EACH = 50
ENGINES = ("pipeline", "megatron", "zero")
# Typical filters; BY_CONFIGURATION has the filters of AS_COLUMNS in terms of the configuration's fields.
FILTERS = (
    "", "engine:megatron", "gpus>=4", "state:oom", "tag:v100", "samples_per_s>100",
    "engine:megatron gpus>=4 state:finished tag:v100 samples_per_s>100", "scaling", "micro_batch:2 memory>8GiB",
)  # fmt: skip
BY_CONFIGURATION = ("parallel.engine:megatron", "train.micro_batch_size:2", "parallel.tensor_parallel_size>=2")
AS_COLUMNS = ("engine:megatron", "micro_batch:2", "tp>=2")
PLAIN_FILES = {"staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"}}


def experiments_page_p95_ms(scale: Scale) -> Result:
    """Measure the 95th percentile of the server's time for a page, over filters, orders and both kinds of list."""
    user, _ = get_user_model().objects.get_or_create(username="bench")
    fill_runs(user, scale.of(RUNS))
    client = Client(SERVER_NAME="127.0.0.1")
    with override_settings(STORAGES=PLAIN_FILES):
        client.force_login(user)
        queries = [
            {"q": text, "show": show, "sort": sort}
            for text, show, sort in itertools.product(FILTERS, ("experiments", "runs"), ("", "-best", "-samples_per_s"))
        ]
        repeats = scale.repeats(3)
        value = _p95(client, queries, repeats)
        columns = _p95(client, [{"q": text, "show": "runs"} for text in AS_COLUMNS], repeats)
        json = _p95(client, [{"q": text, "show": "runs"} for text in BY_CONFIGURATION], repeats)
    against = f"{json:,.0f} ms by fields in JSON, {columns:,.0f} by columns"
    return Result(value, against, repeats, json / columns)


def _p95(client: Client, queries: Sequence[dict[str, str]], repeats: int) -> float:
    times = []
    for query in [*queries[:1], *(query for _ in range(repeats) for query in queries)]:
        began = time.perf_counter()
        response = client.get("/experiments/", query)
        times.append((time.perf_counter() - began) * 1e3)
        if response.status_code != 200:
            raise RuntimeError(f"{query} returned status {response.status_code}")
    # The first request of a process also loads templates.
    return float(np.percentile(times[1:], 95))


TYPED = ("scaling 12", "megatron", "micro_batch_size 2", "#7 oom", "state:oom", "compare 2 4",
         "plan llama 405b 1024 h100", "nothing like this", "gpus>=4", "")  # fmt: skip
EXPERIMENTS = 500


def palette_p95_ms(scale: Scale) -> Result:
    """Measure the 95th percentile of the server's time for the palette's list, with each letter of some queries."""
    user, _ = get_user_model().objects.get_or_create(username="bench")
    fill_runs(user, scale.of(RUNS))
    missing = range(Experiment.objects.count(), EXPERIMENTS)
    Experiment.objects.bulk_create(Experiment(name=f"Empty {n}", slug=f"empty-{n}", owner=user) for n in missing)
    client = Client(SERVER_NAME="127.0.0.1")
    client.force_login(user)
    queries = [text[: end + 1] for text in TYPED for end in range(max(1, len(text)))]
    times: dict[str, list[float]] = {}
    for query in [*queries[:1], *(query for _ in range(scale.repeats(3)) for query in queries)]:
        began = time.perf_counter()
        response = client.get("/palette/", {"q": query, "at": "/experiments/scaling-3/"})
        times.setdefault(query, []).append((time.perf_counter() - began) * 1e3)
        if response.status_code != 200:
            raise RuntimeError(f"{query} returned status {response.status_code}")
    times[queries[0]].pop(0)  # the first request of a process also loads templates
    everything = [value for values in times.values() for value in values]
    slowest = max(times, key=lambda query: float(np.median(times[query])))
    against = f"median {np.median(everything):.0f} ms; {np.median(times[slowest]):.0f} ms for {slowest!r}"
    return Result(float(np.percentile(everything, 95)), against, len(everything))


def fill_runs(user: User, count: int) -> None:
    for number in range(max(1, count // RUNS_EACH)):
        experiment = fill_experiment(user, f"scaling-{number}", min(count, RUNS_EACH), number)
        if number % 3 == 0:
            Tag.objects.create(experiment=experiment, name="v100")


def fill_experiment(user: User, slug: str, count: int, number: int = 0) -> Experiment:
    """Create an experiment with so many runs that have ended; `number` varies its settings."""
    random = np.random.default_rng(number)
    experiment = Experiment.objects.create(
        name=slug.replace("-", " ").capitalize(), slug=slug, question="How far does it scale?", owner=user
    )
    data: dict[str, Any] = {"parallel": {"engine": ENGINES[number % 3], "data_parallel_size": 2 ** (number % 4)}}
    config = Config.objects.create(
        experiment=experiment, version=1, data=data, digest=digest({"n": number}), created_by=user
    )
    Run.objects.bulk_create([_run(config, n, random, user) for n in range(count)])
    return experiment


def _run(config: Config, number: int, random: np.random.Generator, user: User) -> Run:
    resolved = RunConfig().resolved()
    resolved["parallel"] |= {**config.data["parallel"], "tensor_parallel_size": 2 ** (number % 2)}
    resolved["train"]["micro_batch_size"] = 2 ** (number % 4)
    step_time = float(random.uniform(0.05, 2.0))
    timers = {f"timer-{n}": {"median": step_time / 9, "min": 0.0, "max": step_time, "by_rank": {}} for n in range(8)}
    return Run(
        experiment=config.experiment,
        config=config,
        number=number + 1,
        label=f"micro_batch_size {2 ** (number % 4)}",
        point={"train.seed": number},
        point_digest=digest({"n": number}),
        resolved=resolved,
        state=("finished", "finished", "finished", "oom", "failed")[number % 5],
        summary={"step_time_s": {"median": step_time}, "timers_s": timers, "ms_per_sample": step_time * 62.5},
        step_time_s=step_time,
        samples_per_s=16 / step_time,
        tokens_per_s=1024 / step_time,
        memory_max_bytes=float(random.uniform(1, 40)) * 2**30,
        created_by=user,
        ended_at=timezone.now(),
    )
