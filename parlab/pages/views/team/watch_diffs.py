"""What the suspected commits of an alert changed, as a part of its page."""

from __future__ import annotations

from typing import Any

from django.core.cache import cache
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from parlab.watch import selectors
from parlab.watch.commits import CommitChange, commit_change, mirror_of
from parlab.watch.models import Commit, Watch

from .watches import find_alert

MAX_COMMITS = 5
_KEPT_S = 86_400
"""A commit never changes; after a day without a reader its diff is dropped."""


@require_GET
def diff(request: HttpRequest, pk: int, number: int) -> HttpResponse:
    """Show files, lines, subjects and authors of the commits between the last good and the first bad result."""
    row = find_alert(pk, number)
    commits = selectors.between(row).commits
    context: dict[str, Any] = {"changes": [], "left_out": max(0, len(commits) - MAX_COMMITS), "problem": ""}
    try:
        context["changes"] = [(commit, _change(row.watch, commit)) for commit in commits[:MAX_COMMITS]]
    except ValueError as problem:
        context["problem"] = str(problem)
    return render(request, "watch/diff.html", context)


def _change(watch: Watch, commit: Commit) -> CommitChange:
    key = f"watch.diff.{watch.pk}.{commit.sha}"
    kept: CommitChange | None = cache.get(key)
    if kept is None:
        kept = commit_change(watch.repository, mirror_of(watch.pk), commit.sha)
        cache.set(key, kept, _KEPT_S)
    return kept
