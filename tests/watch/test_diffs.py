"""What the suspected commits of an alert changed, and what kind of change it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.core.cache import cache
from django.test import Client

from parlab.lab.models import Run
from parlab.watch.analysis.environments import Difference
from parlab.watch.commits import commit_change, mirror_of
from parlab.watch.kinds import kinds_of
from parlab.watch.models import Alert, Result, Watch
from parlab.watch.selectors import Between
from parlab.watch.triggers import repository_check

from .conftest import history
from .test_triggers import commit, make_watch, repository  # noqa: F401  (fixtures)


@pytest.fixture
def suspected(make_watch: Callable[..., Watch], repository: Path) -> Alert:  # noqa: F811
    """A change between two results, with one commit between them that the server has read."""
    watch = make_watch()
    repository_check(watch=watch)
    sha = commit(repository, "print('first')\nprint('slower <b>')\n", "Print more")
    repository_check(watch=watch)
    good, bad = history(watch, [0.1, 0.2])
    place = watch.commits.get(sha=sha).position
    Result.objects.filter(pk=good.pk).update(position=place - 1)
    Result.objects.filter(pk=bad.pk).update(position=place, commit=sha)
    return Alert.objects.create(
        watch=watch, first_bad_id=bad.pk, last_good_id=good.pk, kind="step", cause=f"commit {sha}", parts=[]
    )


def test_an_alert_shows_what_its_commits_changed(admin_client: Client, suspected: Alert) -> None:
    page = admin_client.get(suspected.get_absolute_url()).content.decode()
    assert f'hx-get="{suspected.get_absolute_url()}diff/"' in page
    part = admin_client.get(f"{suspected.get_absolute_url()}diff/").content.decode()
    for shown in ("Print more", "Ada", "train.py", "+1</b>", "\N{MINUS SIGN}0</b>"):
        assert shown in part
    assert "+print(&#x27;slower &lt;b&gt;&#x27;)" in part


def test_a_repository_that_cannot_be_read_any_more_is_said(
    admin_client: Client, suspected: Alert, settings: Any
) -> None:
    settings.WATCH_PATHS = []
    cache.clear()  # the commit of another test may have the same name
    part = admin_client.get(f"{suspected.get_absolute_url()}diff/").content.decode()
    assert "What the commits changed is unknown: repository" in part


def test_only_names_of_commits_reach_git(suspected: Alert) -> None:
    with pytest.raises(ValueError, match="not the hexadecimal name"):
        commit_change(suspected.watch.repository, mirror_of(suspected.watch_id), "--output=/tmp/x")


def kinds(names: list[str], good: Run | None = None, bad: Run | None = None, **values: list[float]) -> str:
    alert: Any = SimpleNamespace(
        kind="step",
        watch=SimpleNamespace(node_id=None),
        last_good=SimpleNamespace(run=good),
        first_bad=SimpleNamespace(run=bad),
    )
    between = Between([], 0, [Difference(name, "1", "2") for name in names], 0)
    return kinds_of(alert, between, values.get("before", []), values.get("after", []))


def run(pk: int, **sections: dict[str, Any]) -> Run:
    return Run(pk=pk, resolved=sections, summary={})


def test_the_kind_of_a_change_follows_from_the_evidence() -> None:
    assert kinds(["commit"]) == "code"
    assert kinds(["packages.torch", "gpus.0.name"]) == "hardware or software"
    assert kinds(["packages.parlab"]) == "method"
    assert kinds([]) == ""


def test_settings_of_the_measurement_are_the_method_others_the_configuration() -> None:
    good = run(1, train={"warmup_steps": 2, "seed": 1}, command={"argv": ["a"]})
    assert kinds([], good, run(2, train={"warmup_steps": 5, "seed": 1}, command={"argv": ["b"]})) == "method"
    assert kinds([], good, run(2, train={"warmup_steps": 2, "seed": 4}, command={"argv": ["a"]})) == "configuration"


def test_noise_is_named_where_nothing_changed_and_the_results_lie_among_the_earlier_ones() -> None:
    before = [0.10, 0.11, 0.12, 0.13, 0.14, 0.15, 0.16, 0.17]
    assert kinds([], before=before, after=[0.13, 0.14, 0.17, 0.18, 0.19]) == "noise"
    assert kinds([], before=before, after=[0.3, 0.31, 0.3, 0.32]) == ""
    assert kinds(["driver"], before=before, after=[0.13, 0.14, 0.17, 0.18, 0.19]) == "software"
