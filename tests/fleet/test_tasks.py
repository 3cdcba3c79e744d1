"""The tasks that the beat and the nodes call by name."""

import time
from typing import Any

import pytest
from django.conf import settings
from django.core.cache import cache
from django.db import connection
from django.test.utils import CaptureQueriesContext

from parlab.celery import app
from parlab.lab.models import Node, RefusedMessage
from parlab.refusals import PENDING
from runners.wire.protocol import HEARTBEAT_TASK, Heartbeat
from runners.wire.trust import seal, shared_key
from tests.signed import sealed_heartbeat


def test_all_scheduled_tasks_exist() -> None:
    app.loader.import_default_modules()
    scheduled = {entry["task"] for entry in settings.CELERY_BEAT_SCHEDULE.values()}
    assert scheduled | {HEARTBEAT_TASK} <= set(app.tasks)


@pytest.mark.django_db
def test_a_heartbeat_off_the_wire_registers_its_node() -> None:
    message = Heartbeat(node="gpu1", pool="default", sent_at=time.time(), slots=1, version="1", hardware={}, held=[])
    app.loader.import_default_modules()
    app.tasks[HEARTBEAT_TASK](sealed_heartbeat(message, settings.NODE_KEY))
    assert Node.objects.get().name == "gpu1"


@pytest.mark.django_db
def test_a_worker_that_lags_behind_dispatches_once_for_all_orders_that_wait(
    django_assert_num_queries: Any,
) -> None:
    app.loader.import_default_modules()
    cache.clear()
    task = app.tasks["parlab.fleet.dispatch"]
    with CaptureQueriesContext(connection) as first:
        task()
    assert len(first) > 0
    with django_assert_num_queries(0):
        task()
    for name in ("dispatch", "reap", "tune", "refresh watches"):
        entry: Any = settings.CELERY_BEAT_SCHEDULE[name]
        assert "expires" not in entry.get("options", {}), f"a worker that stays behind would never {name}"


@pytest.mark.django_db
def test_something_that_is_no_heartbeat_registers_nothing() -> None:
    app.loader.import_default_modules()
    PENDING.take()
    own = shared_key(settings.NODE_KEY, "gpu1")
    app.tasks[HEARTBEAT_TASK](seal("heartbeat", "gpu1", {"node": "gpu1", "slots": 0}, own))
    assert not Node.objects.exists()
    refused: list[Any] = [*PENDING.take(), *RefusedMessage.objects.all()]
    assert refused[0].sender == "gpu1"
    assert "invalid heartbeat" in refused[0].reason
