"""Shared fixtures: a separate data directory, a real Redis, users, experiments and runs."""

from __future__ import annotations

import gc
import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import hypothesis
import psutil
import pytest
import redis
from django.apps import apps
from django.contrib.auth import get_user_model
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone
from pytest_django import DjangoDbBlocker
from xdist.remote import Producer

from parlab.embedded import free_port, redis_command
from parlab.lab.models import Attempt, Config, Experiment, Member, MemberState, Node, Run
from runners.config import RunConfig, digest
from tests.databases import Template
from tests.kubernetes.plane.build import program, why_not
from tests.patience import wait_for
from tests.workers import Scheduling, part_of, rank

# The time of an example depends more on the load of the machine than on the code. Examples are the same in every run;
# HYPOTHESIS_PROFILE=search tries others.
_PROFILE: dict[str, Any] = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
hypothesis.settings.register_profile("same", derandomize=True, **_PROFILE)
hypothesis.settings.register_profile("search", **_PROFILE)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

# Every process that a test starts would compile parlab again.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

SMALL: dict[str, Any] = {
    "model": {"num_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "sequence_length": 16, "vocab_size": 64},
    "train": {"global_batch_size": 4, "micro_batch_size": 1, "iterations": 4, "warmup_steps": 1},
    "parallel": {"pipeline_parallel_size": 2},
}


def pytest_report_header() -> str:
    """State whether the tests on Kubernetes run."""
    return f"kubernetes: {why_not() or program('kube-apiserver')}"


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling:
    """Divide the tests among the workers."""
    return Scheduling(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Leave the garbage collector off: what collection makes stays, and looking at it takes a third of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the files that take longest, so that no worker is left with one at the end.

    PARLAB_SLOW_PART=3/12 selects a part of the slow tests, as CI does.
    """
    items.sort(key=rank)
    if part := os.environ.get("PARLAB_SLOW_PART"):
        slow = [item for item in items if item.get_closest_marker("slow")]
        others = set(slow) - part_of(slow, part)
        config.hook.pytest_deselected(items=list(others))
        items[:] = [item for item in items if item not in others]


@pytest.fixture(scope="session")
def template_database(django_db_modify_db_settings: None) -> Template:
    return Template()


@pytest.fixture(scope="session")
def django_db_keepdb(template_database: Template, django_db_blocker: DjangoDbBlocker) -> bool:
    """Whether the database of this worker exists, as a copy of that of another worker."""
    with django_db_blocker.unblock():
        return template_database.copy()


@pytest.fixture(scope="session")
def django_db_setup(
    django_db_setup: None, template_database: Template, django_db_keepdb: bool, django_db_blocker: DjangoDbBlocker
) -> None:
    """Create the test database, once for all workers."""
    with django_db_blocker.unblock():
        template_database.save(django_db_keepdb)


def start_redis(port: int, directory: Path) -> subprocess.Popen[bytes]:
    """Start a real Redis and wait until it answers."""
    process = subprocess.Popen(redis_command(port, directory), stdout=subprocess.DEVNULL)
    client = redis.Redis(port=port)

    def answers() -> bool:
        with suppress(redis.ConnectionError):
            return bool(client.ping())
        return False

    wait_for(answers, f"Redis answers at port {port}")
    return process


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a real Redis that runs for the whole session."""
    port = free_port()
    process = start_redis(port, tmp_path_factory.mktemp("redis"))
    yield f"redis://127.0.0.1:{port}/0"
    process.kill()
    process.wait()


@pytest.fixture
def redis_url(redis_server: str) -> str:
    """URL of an empty real Redis."""
    redis.Redis.from_url(redis_server).flushall()
    return redis_server


@pytest.fixture
def no_orphans() -> Iterator[None]:
    """Fail a test that leaves child processes running, and end them."""
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    yield
    remaining = [child for child in psutil.Process().children(recursive=True) if child.pid not in before]
    names = [f"{child.pid} {' '.join(child.cmdline())[:80]}" for child in remaining if child.is_running()]
    for child in remaining:
        child.kill()
    assert not names, f"left running: {names}"


@pytest.fixture
def catalogue(db: None) -> None:
    """The devices that the migrations create, also after a test that emptied all tables."""
    importlib.import_module("parlab.lab.migrations.0001_release_0_1").fill_catalogue(apps, None)


@pytest.fixture
def user(db: None) -> User:
    return get_user_model().objects.create_user("ada", password="correct horse battery", is_staff=True)


@pytest.fixture
def admin(user: User) -> User:
    """`user` with all permissions."""
    user.is_superuser = True
    user.save()
    return user


@pytest.fixture
def page(client: Client, admin: User) -> Client:
    """A browser of a user with all permissions."""
    client.force_login(admin)
    return client


@pytest.fixture
def experiment(user: User) -> Experiment:
    return Experiment.objects.create(name="Pipeline schedules", slug="pipeline-schedules", owner=user)


@pytest.fixture
def make_config(experiment: Experiment, user: User) -> Callable[..., Config]:
    """Create a config version of the experiment: make_config(sweep={...}, data={...})."""

    def make(*, data: dict[str, Any] | None = None, sweep: dict[str, list[Any]] | None = None) -> Config:
        content = SMALL if data is None else data
        return Config.objects.create(
            experiment=experiment,
            version=experiment.configs.count() + 1,
            data=content,
            sweep=sweep or {},
            digest=digest({"data": content, "sweep": sweep or {}}),
            created_by=user,
        )

    return make


def place(attempt: Attempt, node: Node | None = None, *, node_rank: int = 0, **fields: Any) -> Member:
    """Make a node a member of an attempt, or change its member: place(attempt, node, committed=3)."""
    states = {"state": attempt.state} if attempt.state in MemberState.values else {}
    given = {"node": node} if node is not None else {}
    member, is_new = Member.objects.get_or_create(
        attempt=attempt, node_rank=node_rank, defaults={**states, **given, **fields}
    )
    if not is_new:
        Member.objects.filter(pk=member.pk).update(**given, **fields)
        member.refresh_from_db()
    return member


@pytest.fixture
def make_node(db: None) -> Callable[..., Node]:
    """Make a node that is online: make_node("gpu1", slots=2, gpus=4, pool="default")."""

    def make(name: str = "gpu1", *, gpus: int = 0, online: bool = True, **fields: Any) -> Node:
        hardware = {"gpus": [{"index": index, "name": "test", "memory_bytes": 1} for index in range(gpus)]}
        seen = timezone.now() if online else timezone.now() - timedelta(minutes=5)
        return Node.objects.create(name=name, hardware=hardware, last_heartbeat_at=seen, **fields)

    return make


@pytest.fixture
def make_attempt(make_config: Callable[..., Config], user: User) -> Callable[..., Attempt]:
    """Create a run whose first attempt has a state: make_attempt(state="running", point={...})."""

    def make(*, state: str = "running", point: dict[str, Any] | None = None, config: Config | None = None) -> Attempt:
        config = config or make_config()
        run = Run.objects.create(
            experiment=config.experiment,
            config=config,
            number=config.experiment.runs.count() + 1,
            point=point or {},
            point_digest=digest(point or {}),
            resolved=RunConfig.model_validate(config.data).resolved(),
            state=state,
            created_by=user,
        )
        return Attempt.objects.create(run=run, number=1, state=state)

    return make
