"""Attempts of before the members keep their node, position, lease and times."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

BEFORE = [("lab", "0014_streams"), ("series", "0004_tracking")]


@pytest.mark.django_db(transaction=True)
def test_an_attempt_of_an_older_version_becomes_one_member() -> None:
    executor = MigrationExecutor(connection)
    newest = executor.loader.graph.leaf_nodes()
    executor.migrate(BEFORE)
    try:
        models = executor.loader.project_state(BEFORE).apps
        moment = datetime(2026, 11, 1, tzinfo=UTC)
        user = models.get_model("auth", "User").objects.create(username="ada")
        experiment = models.get_model("lab", "Experiment").objects.create(name="E", slug="e", owner=user)
        config = models.get_model("lab", "Config").objects.create(
            experiment=experiment, version=1, data={}, sweep={}, digest="d", created_by=user
        )
        node = models.get_model("lab", "Node").objects.create(name="gpu1")
        run = models.get_model("lab", "Run").objects.create(
            experiment=experiment, config=config, number=1, point={}, point_digest="p", resolved={}, created_by=user
        )
        attempts = models.get_model("lab", "Attempt").objects
        placed = attempts.create(
            run=run, number=1, node=node, state="finished", committed=4096, dispatched_at=moment, started_at=moment,
            ended_at=moment, exit_code=0, reason="",
        )  # fmt: skip
        attempts.create(run=run, number=2, state="queued")
        log = models.get_model("series", "LogChunk").objects.create(attempt=placed, position=0, size=3, data=b"abc")
    finally:
        executor = MigrationExecutor(connection)
        executor.migrate(newest)
    from parlab.lab.models import Member
    from parlab.series.models import LogChunk

    member = Member.objects.select_related("node").get()
    assert member.node is not None
    assert (member.attempt_id, member.node_rank, member.node.name, member.state) == (placed.pk, 0, "gpu1", "finished")
    assert (member.committed, member.dispatched_at, member.ended_at, member.exit_code) == (4096, moment, moment, 0)
    assert LogChunk.objects.get(pk=log.pk).node_rank == 0
