"""The watch of the demo: real runs of each commit of its repository, the alert, the bisection, the new baseline."""

from __future__ import annotations

import json
import random
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from parlab.demo import content, slower
from parlab.lab.models import Attempt, Run
from parlab.watch import services
from parlab.watch.bisecting import bisect_start
from parlab.watch.commits import commit_of
from parlab.watch.models import Alert, Bisect, Order, Watch
from runners.engines.command import check_allowed
from runners.wire.protocol import RunState


@pytest.fixture
def watch(user: User, tmp_path: Path, settings: Any) -> Watch:
    settings.DATA_DIR, settings.WATCH_PATHS = tmp_path, [str(tmp_path)]
    return slower.watch_start(user)


def passes_of(commit: str) -> int:
    git = ["git", "-C", str(slower.directory()), "show", f"{commit}:train.py"]
    script = subprocess.run(git, capture_output=True, text=True, check=True).stdout
    (passes,) = re.findall(r"^REPEATS = (\d+)", script, re.MULTILINE)
    return int(passes)


def run_all() -> int:
    """Run the command of each active run and store a step time, as a node and the ingest would.

    The time follows the passes over a batch that the commit's script makes, with 1 % of noise: the clock of a machine
    that runs other tests would decide which commit is called slow.
    """
    runs = list(Run.objects.active().select_related("config"))
    for run in runs:
        argv = run.config.data["command"]["argv"]
        done = subprocess.run(argv, capture_output=True, text=True, check=True)
        steps = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"parlab":')]
        assert all(step["step_time_s"] > 0 for step in steps if not step["warmup"])
        noise = random.Random(f"{run.number} {run.attempt_number}").gauss(1e-3, 1e-5)
        summary = {"step_time_s": {"median": passes_of(commit_of(run.config.data)) * noise}}
        fields = {"state": RunState.FINISHED, "summary": summary}
        Attempt.objects.filter(run=run, number=run.attempt_number).update(**fields, ended_at=timezone.now())
        Run.objects.filter(pk=run.pk).update(**fields)
    return len(runs)


def play(watch: Watch) -> None:
    while True:
        services.watch_advance(watch=watch)
        is_busy = run_all() or watch.orders.filter(state=Order.State.OPEN).exists()
        if not is_busy and not Bisect.objects.filter(state=Bisect.State.RUNNING).exists():
            return


def test_the_demo_orders_each_commit_once(watch: Watch, user: User) -> None:
    assert slower.watch_start(user) == watch
    assert watch.orders.count() == watch.commits.count() == len(slower.COMMITS)
    assert [commit.subject for commit in watch.commits.all()] == [subject for subject, _, _ in slower.COMMITS]


def test_its_daemon_may_run_each_commit_and_nothing_else(watch: Watch, tmp_path: Path) -> None:
    allowed = json.loads(content.allow_commands(tmp_path / "allowed.json").read_text())
    check_allowed(slower.command("abc"), allowed)
    with pytest.raises(ValueError, match="is not allowed on this node"):
        check_allowed([*slower.command()[:-3], "python other.py", "--commit", "abc"], allowed)


@pytest.mark.slow
@pytest.mark.usefixtures("redis_url")
def test_the_alert_names_the_commit_bisection_finds_it_and_accepting_sets_the_baseline(
    watch: Watch, user: User
) -> None:
    play(watch)
    alert = Alert.objects.get(is_worse=True)
    culprit = watch.commits.get(subject=slower.COMMITS[slower.SLOW][0])
    assert alert.first_bad.commit == culprit.sha
    assert alert.largest["size"] > 0.3
    first, last = (watch.commits.order_by(order).first() for order in ("position", "-position"))
    assert first is not None
    assert last is not None
    bisect = bisect_start(alert=alert, user=user, good=first.sha, bad=last.sha)
    play(watch)
    bisect.refresh_from_db()
    assert (bisect.state, bisect.culprit) == (Bisect.State.DONE, culprit.sha)
    services.alert_answer(alert=alert, answer="expect", user=user, reason="on purpose")
    services.watch_run(watch=watch, user=watch.created_by)
    play(watch)
    assert Alert.objects.get(is_worse=True).state == Alert.State.EXPECTED


def test_the_button_starts_it(page: Client, tmp_path: Path, settings: Any) -> None:
    settings.DATA_DIR, settings.WATCH_PATHS = tmp_path, [str(tmp_path)]
    text = page.post("/demo/watch/", follow=True).content.decode()
    assert "The commits of a small repository are run" in text
    assert Watch.objects.get().orders.count() == len(slower.COMMITS)
