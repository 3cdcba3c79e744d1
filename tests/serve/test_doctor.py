"""The doctor: one row for each check, what it found, and what to do."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import OperationalError, connection
from django.utils import timezone

from parlab.client.version import VERSION
from parlab.lab.models import Node
from parlab.serve import doctor, readiness
from parlab.serve.doctor import CHECKS, Finding, examine

pytestmark = pytest.mark.django_db


def found(name: str) -> list[Finding]:
    return [finding for finding in examine() if finding.check == name]


def only(name: str) -> Finding:
    [finding] = [each for each in found(name) if each.level != "ok"]
    return finding


@pytest.fixture
def whole(redis_url: str, settings: Any) -> None:
    """A server whose parts all work."""
    settings.REDIS_URL = redis_url
    settings.HTTPS, settings.TRUSTED_PROXIES, settings.SHARED_NODE_KEY = True, ["127.0.0.1"], False
    for queue in settings.CELERY_TASK_QUEUES:
        readiness.alive_note(queue.name)


@pytest.mark.usefixtures("whole")
def test_each_check_has_a_row_and_a_whole_server_has_no_error(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CHECKS, "settings", lambda: iter(()))
    call_command("doctor", "--json")
    rows = json.loads(capsys.readouterr().out)
    assert {row["check"] for row in rows} == set(CHECKS)
    assert [row for row in rows if row["level"] == "error"] == []
    call_command("doctor")
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("ok      redis") for line in lines)


def test_what_is_away_is_an_error_with_a_remedy_and_the_exit_code(capsys: Any) -> None:
    with pytest.raises(SystemExit) as ended:
        call_command("doctor")
    assert ended.value.code == 1
    text = capsys.readouterr().out
    assert "ERROR   redis" in text
    assert "-> start it, and check REDIS_URL" in text
    assert only("workers").text == "unknown without Redis"

    def away(*_: Any) -> None:
        raise OperationalError("connection refused")

    with connection.execute_wrapper(away):
        database = only("database")
    assert (database.level, database.text) == ("error", "it does not answer (connection refused)")


@pytest.mark.slow
def test_insecure_and_invalid_settings_are_named(settings: Any) -> None:
    settings.HTTPS = False
    assert "unencrypted" in only("proxy").text
    settings.HTTPS, settings.TRUSTED_PROXIES = True, []
    assert "PARLAB_TRUSTED_PROXIES" in only("proxy").remedy
    settings.WATCH_NETWORKS, settings.REDIS_URL = ["nonsense"], "nonsense://"
    assert any("PARLAB_WATCH_NETWORKS" in finding.text for finding in found("settings"))
    assert "a setting is invalid" in only("redis").text
    settings.SENDS_MAIL, settings.EMAIL_BACKEND = True, "django.core.mail.backends.smtp.EmailBackend"
    settings.EMAIL_HOST, settings.EMAIL_PORT = "127.0.0.1", 1
    assert "the mail server does not answer" in only("mail").text
    settings.RAW_DAYS = 3.0
    assert "removed for ever after 3 days" in only("storage").text


@pytest.mark.usefixtures("admin_user")
def test_single_sign_on_is_examined(settings: Any) -> None:
    assert [row[0] for row in CHECKS["logins"]()] == ["ok"]
    settings.OIDC_ISSUER, settings.SIGNON_GROUPS = "http://127.0.0.1:9", {"vision": "gone:viewer"}
    User.objects.update(is_superuser=False)
    rows = {text: level for level, text, _ in CHECKS["logins"]()}
    assert {text.partition("(")[0]: level for text, level in rows.items()} == {
        "the issuer does not answer ": "error",
        "PARLAB_SIGNON_GROUPS names unknown projects: gone": "warning",
        "nobody could log in without single sign-on": "warning",
    }
    settings.OIDC_ISSUER, settings.SIGNON_GROUPS = "http://login.example.org", {"vision": "boss"}
    assert "PARLAB_SIGNON_GROUPS: role 'boss'" in " ".join(finding.text for finding in found("settings"))
    settings.SIGNON_GROUPS = "{a"
    assert "PARLAB_SIGNON_GROUPS: Expecting property name" in " ".join(finding.text for finding in found("settings"))
    settings.SIGNON_GROUPS = '{"vision": "boss"}'
    problems = " ".join(finding.text for finding in found("settings"))
    assert "parlab.E006: PARLAB_OIDC_ISSUER 'http://login.example.org' is not https" in problems
    assert "parlab.E007: PARLAB_SIGNON_GROUPS: role 'boss' of group 'vision' is unknown" in problems


@pytest.mark.usefixtures("whole")
def test_nodes_and_clocks_are_compared(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.SHARED_NODE_KEY = True
    Node.objects.create(name="gpu1", last_heartbeat_at=timezone.now(), clock={"offset_s": 7.0}, daemon_version="0.0.9")
    Node.objects.create(name="gpu2")
    Node.objects.create(name="gpu3", last_heartbeat_at=timezone.now(), hardware={"run_as": "trainer"})
    Node.objects.update(abilities={"containers": ["podman"]})
    texts = " | ".join(finding.text for finding in found("nodes"))
    for part in (
        "silent: gpu2",
        "gpu3 starts containers with podman",
        "clock of gpu1 is off by 7.0 s",
        "gpu1, gpu2, gpu3 may use the shared key",
        "gpu1, gpu2: runs have the account of the daemon: their code can read the key",
    ):
        assert part in texts
    assert only("versions").text == "daemons of other releases: gpu1 0.0.9"
    assert only("versions").remedy == f"upgrade them to {VERSION}"
    now = time.time()
    monkeypatch.setattr("parlab.serve.doctor.time.time", lambda: now - 60)
    assert "differs from that of Redis by 6" in only("clock").text


@pytest.mark.database
def test_partitions_that_are_rarely_vacuumed_are_named_and_mended() -> None:
    if connection.vendor != "postgresql":
        assert doctor.mend() == 0
        return
    assert doctor.mend() == 0
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE series_logchunk_default RESET (autovacuum_vacuum_scale_factor)")
    assert "the first series_logchunk_default" in only("database").text
    assert doctor.mend() == 1
    assert not [each for each in found("database") if each.level != "ok"]
