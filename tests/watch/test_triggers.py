"""Occasions, orders and bisections: with rows in place of nodes, and with a real repository."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from parlab.lab.models import Attempt, Config, Node, Project, Run
from parlab.lab.models.access.viewer import shared_project_id
from parlab.lab.services.access.budgets import budget_set
from parlab.lab.services.configs import config_save
from parlab.lab.services.runs import run_cancel_request
from parlab.watch import services
from parlab.watch.bisecting import bisect_advance, bisect_cost, bisect_start, bisect_switch, steps_of, verdict_of
from parlab.watch.collecting import note_of
from parlab.watch.commits import commit_of, with_commit
from parlab.watch.models import Alert, Bisect, Order, Watch
from parlab.watch.ordering import config_at, order_place, orders_advance
from parlab.watch.repository_addresses import check_repository
from parlab.watch.triggers import nodes_check, repository_check, schedule_check
from runners.wire.protocol import RunState
from tests.conftest import SMALL

from .conftest import repeats

AT_COMMIT = Path(settings.BASE_DIR) / "runners" / "at_commit.py"


def git(directory: Path, *arguments: str) -> str:
    own = ["git", "-C", str(directory), "-c", "user.name=Ada", "-c", "user.email=ada@example.org"]
    return subprocess.run([*own, *arguments], check=True, capture_output=True, text=True).stdout.strip()


def commit(repository: Path, text: str, subject: str) -> str:
    (repository / "train.py").write_text(text)
    git(repository, "add", "train.py")
    git(repository, "commit", "--quiet", "--allow-empty", "--message", subject)
    return git(repository, "rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    path = tmp_path / "trainer"
    path.mkdir()
    git(path, "init", "--quiet", "--initial-branch", "main")
    commit(path, "print('first')\n", "Add the training")
    return path


@pytest.fixture
def make_watch(make_config: Callable[..., Config], user: User, repository: Path, tmp_path: Path, settings: Any) -> Any:
    settings.DATA_DIR, settings.WATCH_PATHS = tmp_path / "data", [str(tmp_path)]

    def make(**fields: Any) -> Watch:
        argv = [sys.executable, str(AT_COMMIT), "--repository", str(repository), "--run", "python train.py"]
        data = {
            "parallel": {"engine": "command"},
            "command": {"argv": [*argv, "--commit", "main"]},
            "launcher": {"kind": "plain"},
        }
        return services.watch_create(
            name="Trainer",
            user=user,
            config=make_config(data=data),
            repository=str(repository),
            branch="main",
            **fields,
        )

    return make


def finish_all(level: Callable[[str], float], seed: int = 1) -> int:
    """End all active runs as a node would; returns how many there were."""
    draw = np.random.default_rng([seed, Attempt.objects.count()])
    runs = list(Run.objects.active().select_related("config"))
    for run in runs:
        value = level(commit_of(run.config.data)) * float(np.exp(draw.normal(0, 0.01)))
        summary = {"step_time_s": {"median": value}}
        now = timezone.now()
        Attempt.objects.filter(run=run, number=run.attempt_number).update(
            state=RunState.FINISHED, summary=summary, started_at=now - timedelta(seconds=30), ended_at=now
        )
        Run.objects.filter(pk=run.pk).update(state=RunState.FINISHED, summary=summary)
    return len(runs)


def play(watch: Watch, level: Callable[[str], float], rounds: int = 200) -> None:
    """Advance a watch until it orders nothing more."""
    for number in range(rounds):
        services.watch_advance(watch=watch)
        is_open = watch.orders.filter(state=Order.State.OPEN).exists()
        if not finish_all(level, number) and not is_open and not Bisect.objects.filter(state="running").exists():
            return
    raise AssertionError(f"the watch still orders runs after {rounds} rounds")


@pytest.mark.parametrize(
    ("address", "is_refused"),
    [
        ("https://ada:secret@git.example/code", True),
        ("https://token@git.example/code", True),
        ("ssh://git:secret@git.example/code", True),
        ("ssh://git@git.example/code", False),
        ("git@git.example:code", False),
        ("https://git.example/code@v2", False),
        ("/srv/code@v2", False),
    ],
)
def test_an_address_of_a_repository_has_no_password(address: str, is_refused: bool, settings: Any) -> None:
    settings.WATCH_PATHS = ["/srv"]
    with pytest.raises(ValueError, match="SSH key") if is_refused else nullcontext():
        check_repository(address)


def test_a_schedule_orders_runs_once_per_time(make_config: Callable[..., Config], user: User) -> None:
    watch = services.watch_create(name="Nightly", user=user, config=make_config(), schedule="daily", repeats=2)
    assert watch.next_at is not None
    assert schedule_check(watch=watch) is None
    late = watch.next_at + timedelta(days=3, minutes=1)
    order = schedule_check(watch=watch, now=late)
    assert order is not None
    assert (order.count, order.reason) == (2, "schedule daily")
    watch.refresh_from_db()
    assert watch.next_at is not None
    assert watch.next_at > late
    assert schedule_check(watch=watch, now=late) is None


@pytest.mark.usefixtures("redis_url")
def test_an_order_runs_each_point_as_often_as_ordered(make_config: Callable[..., Config], user: User) -> None:
    config = make_config(sweep={"train.micro_batch_size": [1, 2]})
    watch = services.watch_create(name="Nightly", user=user, config=config, schedule="daily", repeats=3)
    services.watch_run(watch=watch, user=watch.created_by)
    play(watch, lambda _: 0.1)
    assert sorted(config.runs.values_list("attempt_number", flat=True)) == [3, 3]
    assert watch.results.count() == 6
    assert Order.objects.get().state == Order.State.DONE


def test_an_order_counts_in_the_budget_of_who_orders(make_config: Callable[..., Config], admin: User) -> None:
    operator = User.objects.create_user("operator")
    budget_set(project=Project.objects.get(pk=shared_project_id()), hours=1.0, user=admin)
    launcher = {"timeout_s": 7200, "max_attempts": 1}
    config = make_config(data={**SMALL, "cluster": {"device": "cuda"}, "launcher": launcher})
    watch = services.watch_create(name="Nightly", user=admin, config=config)
    services.watch_run(watch=watch, user=operator)
    orders_advance(watch=watch)
    run = Run.objects.get()
    assert (run.created_by, run.approval is not None) == (operator, True)
    run_cancel_request(run=run)
    order_place(watch=watch, count=1, reason="by itself")
    Order.objects.filter(ordered_by=operator).update(state=Order.State.DONE)
    orders_advance(watch=watch)
    run.refresh_from_db()
    assert (run.state, run.queued_by, run.approval) == ("queued", admin, None)


def test_a_configuration_with_the_note_of_a_watch_is_not_taken_for_its_own(make_watch: Callable[..., Watch]) -> None:
    watch = make_watch()
    assert watch.config is not None
    other = User.objects.create_user("other")
    foreign = config_save(
        experiment=watch.config.experiment, data=SMALL, sweep={}, note=f"{note_of(watch)}{'a' * 40}", user=other,
        as_next=True,
    )  # fmt: skip
    own = config_at(watch, "a" * 40)
    assert own != foreign
    assert config_at(watch, "a" * 40) == own


def test_a_failed_run_ends_its_order_with_the_reason(make_config: Callable[..., Config], user: User) -> None:
    watch = services.watch_create(name="Nightly", user=user, config=make_config(), repeats=2)
    services.watch_run(watch=watch, user=watch.created_by)
    orders_advance(watch=watch)
    Run.objects.update(state=RunState.FAILED, reason="no such file")
    orders_advance(watch=watch)
    orders_advance(watch=watch)
    order = Order.objects.get()
    assert order.state == Order.State.FAILED
    assert order.problem == "run #1 ended as failed: no such file"


def test_new_software_on_a_node_orders_runs_and_names_it(make_config: Callable[..., Config], user: User) -> None:
    watch = services.watch_create(name="Nightly", user=user, config=make_config(), on_node_change=True)
    node = Node.objects.create(
        name="n1",
        last_heartbeat_at=timezone.now(),
        abilities={"software": {"torch": "2.12"}},
        hardware={"driver": "570"},
    )
    assert nodes_check(watch=watch) is None
    watch.refresh_from_db()
    assert nodes_check(watch=watch) is None
    Node.objects.filter(pk=node.pk).update(abilities={"software": {"torch": "2.13"}})
    order = nodes_check(watch=watch)
    assert order is not None
    assert order.reason == "node n1: torch 2.12 -> 2.13"
    watch.refresh_from_db()
    assert nodes_check(watch=watch) is None


def test_new_commits_are_run_in_their_order(make_watch: Callable[..., Watch], repository: Path) -> None:
    watch = make_watch()
    (first,) = repository_check(watch=watch)
    assert first.commit == git(repository, "rev-parse", "HEAD")
    assert repository_check(watch=watch) == []
    shas = [commit(repository, f"print({at})\n", f"Change {at}") for at in range(2)]
    assert [order.commit for order in repository_check(watch=watch)] == shas
    assert list(watch.commits.values_list("subject", flat=True)) == ["Add the training", "Change 0", "Change 1"]


def test_a_repository_that_cannot_be_read_is_a_problem_of_the_watch(
    make_watch: Callable[..., Watch], tmp_path: Path
) -> None:
    watch = make_watch()
    Watch.objects.update(repository=str(tmp_path / "no" / "repository"))
    watch.refresh_from_db()
    assert repository_check(watch=watch) == []
    watch.refresh_from_db()
    assert "git cannot read the repository" in watch.problem


@pytest.mark.parametrize("address", ["--upload-pack=touch /tmp/x", "ext::sh -c id", "relative/path", "file:///etc"])
def test_an_address_that_git_could_take_for_a_command_is_refused(make_watch: Any, address: str) -> None:
    watch = make_watch()
    Watch.objects.update(repository=address)
    watch.refresh_from_db()
    repository_check(watch=watch)
    watch.refresh_from_db()
    assert "is no address of a git repository" in watch.problem


def test_the_commit_of_a_command() -> None:
    data = {"command": {"argv": ["a", "--commit", "main"]}}
    assert commit_of(data) == "main"
    assert commit_of(with_commit(data, "abc")) == "abc"
    assert commit_of(data) == "main"
    with pytest.raises(ValueError, match="has no --commit"):
        with_commit({"command": {"argv": ["a"]}}, "abc")


@pytest.fixture
def slower(make_watch: Callable[..., Watch], repository: Path) -> tuple[Watch, str]:
    """A watch of twelve commits of which the first and the last have been run; the eighth makes it slower."""
    watch = make_watch(repeats=10)
    repository_check(watch=watch)
    shas = [commit(repository, f"print({at})\n", f"Change {at}") for at in range(12)]
    slow = set(shas[7:])
    play(watch, lambda sha: 0.11 if sha in slow else 0.1)
    repository_check(watch=watch)
    watch.orders.filter(state=Order.State.OPEN).exclude(commit=shas[-1]).delete()
    play(watch, lambda sha: 0.11 if sha in slow else 0.1)
    return watch, shas[7]


@pytest.mark.slow
@pytest.mark.usefixtures("redis_url")
def test_a_bisection_finds_the_commit_and_continues_after_a_pause(slower: tuple[Watch, str], user: User) -> None:
    watch, culprit = slower
    alert = Alert.objects.get()
    cost = bisect_cost(alert)
    assert (cost.commits, cost.steps, cost.runs) == (12, 4, 12)
    assert cost.duration == timedelta(seconds=360)
    bisect = bisect_start(alert=alert, user=user)
    assert bisect_start(alert=alert, user=user) == bisect
    bisect_advance(bisect=bisect)
    assert watch.orders.filter(state=Order.State.OPEN).count() == 1
    assert bisect_switch(bisect=bisect, state=Bisect.State.PAUSED)
    bisect.refresh_from_db()
    slow = set(
        watch.commits.filter(position__gte=watch.commits.get(sha=culprit).position).values_list("sha", flat=True)
    )
    play(watch, lambda sha: 0.11 if sha in slow else 0.1)
    assert bisect_switch(bisect=bisect, state=Bisect.State.RUNNING)
    play(watch, lambda sha: 0.11 if sha in slow else 0.1)
    bisect.refresh_from_db()
    assert (bisect.state, bisect.culprit) == (Bisect.State.DONE, culprit)
    assert "Change 7" in bisect.reason
    assert {step.verdict for step in steps_of(bisect)} == {"good", "bad"}
    alert.refresh_from_db()
    assert alert.first_bad.commit == culprit
    assert watch.results.count() < 20 + 12 * 6


@pytest.mark.slow
@pytest.mark.usefixtures("redis_url")
def test_the_page_of_an_alert_offers_the_bisection_with_its_cost(slower: tuple[Watch, str], page: Client) -> None:
    alert = Alert.objects.get()
    text = page.get(alert.get_absolute_url()).content.decode()
    assert "12 commits between last good and first bad: about 4 steps" in text
    text = page.post(f"{alert.get_absolute_url()}bisect/start/", follow=True).content.decode()
    assert "Bisection started" in text
    assert "Running" in text
    table = text[text.index('aria-label="Steps of the bisection"') :]
    assert '<th scope="col" class="number">Step time</th>' in table
    assert " ms</" in table[: table.index("</table>")].replace("\xa0", " ").replace("\u202f", " ")
    refused = page.post(f"{alert.get_absolute_url()}bisect/start/", {"good": "abc"}, follow=True).content.decode()
    assert "is no commit of the watched branch" in refused


def test_a_verdict_needs_three_results_and_a_clear_difference() -> None:
    good, bad = ([float(np.log(value)) for value in repeats(5, level=level, seed=3)] for level in (0.1, 0.11))
    assert verdict_of(good[:2], good, bad) == ""
    assert verdict_of(good[:3], good, bad) == "good"
    assert verdict_of(bad[:3], good, bad) == "bad"
    middle = [(low + high) / 2 for low, high in zip(good, bad, strict=True)]
    assert verdict_of(middle, good, bad) == ""


@pytest.mark.usefixtures("redis_url")
def test_a_suspicion_orders_the_runs_that_settle_it(make_config: Callable[..., Config], user: User) -> None:
    watch = services.watch_create(
        name="Nightly", user=user, config=make_config(), schedule="daily", repeats=12, max_extra=6
    )
    services.watch_run(watch=watch, user=watch.created_by)
    play(watch, lambda _: 0.1)
    Watch.objects.update(repeats=1)
    watch.refresh_from_db()
    services.watch_run(watch=watch, user=watch.created_by)
    play(watch, lambda _: 0.13)
    own = watch.orders.exclude(suspect="")
    assert own.exists()
    assert 2 <= sum(order.count for order in own) <= 6
    assert "is not certain yet" in own[0].reason
    assert Alert.objects.count() == 1


def run_at(repository: Path, cache: Path, sha: str, *more: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, str(AT_COMMIT), "--repository", str(repository), "--cache", str(cache), *more]
    argv += ["--run", "python train.py", "--commit", sha]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


def test_each_commit_runs_in_a_worktree_that_is_built_once(repository: Path, tmp_path: Path) -> None:
    first = git(repository, "rev-parse", "HEAD")
    second = commit(repository, "print(open('built').read())\n", "Read what was built")
    build = ["--build", "python -c \"open('built', 'a').write('built')\""]
    outputs = [run_at(repository, tmp_path / "cache", sha, *build) for sha in (first, second, second)]
    assert [done.returncode for done in outputs] == [0, 0, 0]
    assert [done.stdout.splitlines()[1] for done in outputs] == ["first", "built", "built"]
    assert outputs[0].stdout.startswith(f"commit {first} of ")


def test_a_commit_or_build_that_fails_is_named(repository: Path, tmp_path: Path) -> None:
    unknown = run_at(repository, tmp_path / "cache", "0" * 40)
    assert unknown.returncode == 1
    assert "has no commit 000" in unknown.stderr
    head = git(repository, "rev-parse", "HEAD")
    broken = run_at(repository, tmp_path / "cache", head, "--build", "python -c 'raise SystemExit(3)'")
    assert broken.returncode == 1
    assert "failed with exit code 3" in broken.stderr


def test_nothing_that_the_administrator_has_not_allowed_follows_the_commit(repository: Path, tmp_path: Path) -> None:
    done = run_at(repository, tmp_path / "cache", "main", "--commit", "main", "--pip", "x")
    assert done.returncode == 2
    assert "--commit occurs twice" in done.stderr
    argv = [sys.executable, str(AT_COMMIT), "--repository", str(repository), "--commit", "main", "--run", "rm"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "--run follows --commit; write --commit last" in done.stderr
