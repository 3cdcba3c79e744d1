"""A database whose watches have cron texts and searches between lock files is migrated."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

OLD, NEW = [("watch", "0001_release_0_1")], [("watch", "0002_simple_schedules")]
AT = datetime(2026, 3, 6, 3, tzinfo=UTC)


def migrated(target: list[tuple[str, str]]) -> Any:
    executor = MigrationExecutor(connection)
    executor.migrate(target)
    return MigrationExecutor(connection).loader.project_state(target).apps.get_model


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_cron_texts_become_schedules_and_searches_between_locks_end() -> None:
    newest = MigrationExecutor(connection).loader.graph.leaf_nodes()
    try:
        get = migrated(OLD)
        user = get("auth", "User").objects.create(username="ada")
        rows = get("watch", "Watch").objects
        nightly, often, without = (
            rows.create(name=name, key=name, schedule=text, next_at=at, created_by_id=user.pk)
            for name, text, at in (("nightly", "0 3 * * *", AT), ("often", "*/5 * * * *", AT), ("without", "", None))
        )
        good, bad = (get("watch", "Result").objects.create(watch=nightly, at=AT, values={}) for _ in range(2))
        get("watch", "Result").objects.create(watch=nightly, at=AT, values={}, lock="a" * 40)
        alert = get("watch", "Alert").objects.create(watch=nightly, first_bad=bad, last_good=good, kind="step")
        search = get("watch", "Bisect").objects.create(
            alert=alert, measure="step_time", good="a" * 40, bad="b" * 40, good_lock="x==1", created_by_id=user.pk
        )
        order = get("watch", "Order").objects.create(watch=nightly, reason="bisection", lock="x==1")
        get = migrated(NEW)
        watches = {row.name: row for row in get("watch", "Watch").objects.all()}
        assert [watches[row.name].schedule for row in (nightly, often, without)] == ["daily", "hourly", ""]
        assert [watches[row.name].next_at for row in (nightly, often, without)] == [AT, AT, None]
        assert watches["nightly"].problem == ""
        assert watches["often"].problem.startswith("its schedule */5 * * * * is now hourly")
        assert set(get("watch", "Result").objects.values_list("pk", flat=True)) == {good.pk, bad.pk}
        assert get("watch", "Bisect").objects.get(pk=search.pk).state == "failed"
        assert "lock files were removed" in get("watch", "Order").objects.get(pk=order.pk).problem
    finally:
        MigrationExecutor(connection).migrate(newest)
