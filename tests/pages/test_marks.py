"""Stars, tags, notes and bulk actions on runs; comments; what changed since the last visit."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from parlab.lab.models import Attempt, Comment, Finding, Run, Star, TagOfRun, Visit
from parlab.lab.services.marks import comment_add, run_note_save, runs_star, runs_tag

from .conftest import finish

pytestmark = pytest.mark.django_db


@pytest.fixture
def run(make_attempt: Callable[..., Attempt]) -> Run:
    return finish(make_attempt())


def words(response: Any) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", response.content.decode()))


def change(page: Client, run: Run, action: str, **more: str) -> Any:
    data = {"run": [run.pk], "action": action, "next": "/experiments/?show=runs", **more}
    return page.post(reverse("runs-change"), data, follow=True)


def test_a_run_is_starred_tagged_and_noted_on_its_page(page: Client, run: Run, admin: User) -> None:
    url = run.get_absolute_url()
    page.post(f"{url}star/")
    page.post(f"{url}tags/", {"tag": "baseline"})
    page.post(f"{url}note/", {"text": "**warm** <script>alert(1)</script>"})
    body = page.get(url).content.decode()
    assert 'aria-pressed="true"' in body
    assert "tag:baseline" in body
    details = page.get(f"{url}details/").content.decode()
    assert "<strong>warm</strong>" in details
    assert "<script>alert(1)" not in details
    listed = words(page.get("/experiments/?show=runs&q=tag:baseline"))
    assert f"starred by {admin.username}" in listed
    page.post(f"{url}star/")
    page.post(f"{url}tags/", {"remove": "baseline"})
    assert not Star.objects.exists()
    assert not TagOfRun.objects.exists()
    assert "invalid tag" in words(page.post(f"{url}tags/", {"tag": "two words"}, follow=True))


def test_selected_runs_are_starred_tagged_archived_and_restored(page: Client, run: Run) -> None:
    assert "1 run tagged slow" in words(change(page, run, "tag", tag="slow"))
    change(page, run, "star")
    assert "1 run untagged slow" in words(change(page, run, "untag", tag="slow"))
    archived = change(page, run, "archive")
    assert "1 run archived: tables and figures leave them out" in words(archived)
    assert 'value="restore"' in archived.content.decode()  # the button that undoes it
    assert page.get(run.get_absolute_url()).status_code == 404
    experiment = words(page.get(f"{run.experiment.get_absolute_url()}configuration/"))
    assert "Archived 1 run" in experiment
    assert "archived" in words(page.get("/experiments/?show=runs&q=archived:yes"))
    assert "1 run restored" in words(change(page, run, "restore"))
    assert page.get(run.get_absolute_url()).status_code == 200


def test_a_deletion_says_what_goes_along_and_asks_first(page: Client, run: Run, viewer: Client) -> None:
    asked = words(change(page, run, "delete"))
    assert "Delete 1 run ?" in asked or "Delete 1 run?" in asked
    assert "1 attempt with" in asked
    assert "This cannot be undone" in asked
    assert Run.objects.filter(pk=run.pk).exists()
    data = {"run": [run.pk], "confirmed": "1", "next": "https://elsewhere.example/"}
    assert viewer.post(reverse("runs-delete"), data).status_code == 403
    answer = page.post(reverse("runs-delete"), data)
    assert answer["Location"] == "/experiments/"
    assert not Run.everything.filter(pk=run.pk).exists()


def test_an_active_run_is_not_deleted(page: Client, make_attempt: Callable[..., Attempt]) -> None:
    run = make_attempt().run
    assert "Cancel it first" in words(page.post(reverse("runs-delete"), {"run": [run.pk], "confirmed": "1"}))
    assert Run.objects.filter(pk=run.pk).exists()


def test_viewers_mark_nothing(viewer: Client, run: Run) -> None:
    for action in ("star", "tag", "archive", "delete"):
        data = {"run": [run.pk], "action": action, "tag": "x"}
        assert viewer.post(reverse("runs-change"), data).status_code == 403
    assert viewer.post(f"{run.get_absolute_url()}note/", {"text": "x"}).status_code == 403
    assert viewer.post(reverse("comment", args=[run.experiment.slug]), {"text": "x"}).status_code == 403


def test_comments_have_authors_and_only_these_change_them(page: Client, run: Run, admin: User) -> None:
    experiment = run.experiment
    finding = Finding.objects.create(experiment=experiment, run=run, rule="r", severity="warning", message="3 is not 4")
    url = reverse("comment", args=[experiment.slug])
    page.post(url, {"text": "The source *rounds* <img src=x onerror=alert(1)>", "finding": finding.pk})
    page.post(url, {"text": "[link](javascript:alert(1)) read this"})
    body = page.get(f"{experiment.get_absolute_url()}report/").content.decode()
    assert "<em>rounds</em>" in body
    assert "<img src=x" not in body
    assert 'href="javascript:' not in body
    assert "1 comment" in words(page.get(reverse("findings", args=[experiment.slug])))
    comment = Comment.objects.earliest("pk")
    edit = reverse("comment-edit", args=[experiment.slug, comment.pk])
    answer = page.post(edit, {"text": "It rounds.", "next": f"/experiments/{experiment.slug}/findings/"})
    assert answer["Location"].endswith(f"/findings/#comment-{comment.pk}")
    assert "edited" in words(page.get(f"{experiment.get_absolute_url()}report/"))
    Comment.objects.filter(pk=comment.pk).update(author=experiment.owner)
    other = Client()
    colleague = User.objects.create_user("colleague")
    other.force_login(colleague)
    assert other.post(edit, {"text": "mine now"}).status_code == 403
    delete = reverse("comment-delete", args=[experiment.slug, comment.pk])
    assert other.post(delete).status_code == 403
    assert "Comment deleted" in words(page.post(delete, follow=True))


def test_pages_say_what_changed_since_the_last_visit(page: Client, run: Run, admin: User) -> None:
    experiment = run.experiment
    places = ["/", experiment.get_absolute_url()]
    for place in places:
        assert "Since your last visit" not in words(page.get(place))  # the first visit
    colleague = User.objects.create_user("colleague")
    comment_add(experiment=experiment, text="Look at the memory.", user=colleague)
    assert "Since your last visit" not in words(page.get("/"))  # still the same visit
    Visit.objects.update(last_at=timezone.now() - timedelta(hours=2))
    Run.objects.filter(pk=run.pk).update(ended_at=timezone.now() - timedelta(hours=1))
    for place in places:
        answer = words(page.get(place))
        assert "Since your last visit, 2 h ago" in answer
        assert "1 new comment" in answer
        assert "Look at the memory." in answer
        assert "Since your last visit, 2 h ago" in words(page.get(place))  # reloading keeps it
    page.post(reverse("visit-dismiss"))
    assert "Since your last visit" not in words(page.get("/"))
    assert "Since your last visit" in words(page.get(experiment.get_absolute_url()))
    page.post(reverse("visit-dismiss"), {"experiment": experiment.slug})
    assert "Since your last visit" not in words(page.get(experiment.get_absolute_url()))


def test_experiment_pages_show_stars_tags_and_notes_of_runs(page: Client, run: Run, admin: User) -> None:
    runs_star(runs=[run], user=admin)
    runs_tag(runs=[run], name="best")
    run_note_save(run=run, text="with the new kernel", user=admin)
    body = page.get(f"{run.experiment.get_absolute_url()}table/").content.decode()
    assert f"Starred by {admin.username}" in body
    assert ">best</a>" in body
    assert 'title="with the new kernel"' in body
