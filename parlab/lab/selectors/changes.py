"""What changed since a moment: runs, findings and comments, in one experiment or in all."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from django.db.models import Count, Q

from parlab.lab.models import Comment, Experiment, Finding, Run
from runners.wire.protocol import FINAL_STATES

from .experiments import StateCount, state_counts

COMMENTS_SHOWN = 3
EXPERIMENTS_SHOWN = 3


class Changes(NamedTuple):
    """What changed since a moment."""

    since: datetime
    new_experiments: Sequence[Experiment]
    """The newest, without those of the reader."""
    experiment_count: int
    queued: int
    """Runs that were queued since then and are not ended yet."""
    ended: list[StateCount]
    findings: int
    comments: Sequence[Comment]
    """The newest, without those of the reader."""
    comment_count: int

    @property
    def is_empty(self) -> bool:
        return not (self.experiment_count or self.queued or self.ended or self.findings or self.comment_count)


def changes_since(since: datetime, *, user_id: int, experiment: Experiment | None = None) -> Changes:
    """Return what changed since a moment; a reader's own comments and experiments are no news."""
    runs, findings = Run.objects.order_by(), Finding.objects.open()
    comments = Comment.objects.exclude(author=user_id)
    created = Experiment.objects.none()
    if experiment is None:
        runs = runs.filter(experiment__archived_at=None)
        findings = findings.filter(experiment__archived_at=None)
        comments = comments.filter(experiment__archived_at=None)
        created = Experiment.objects.in_use().filter(created_at__gt=since).exclude(owner=user_id)
    else:
        runs, findings = runs.filter(experiment=experiment), findings.filter(experiment=experiment)
        comments = comments.filter(experiment=experiment)
    recent = Q(ended_at__gt=since, state__in=FINAL_STATES)
    ended = dict(runs.filter(recent).values_list("state").annotate(number=Count("pk")))
    comments = comments.filter(created_at__gt=since)
    new_comments = _with_people(list(comments.order_by("-pk").values_list("pk", flat=True)[:COMMENTS_SHOWN]))
    new_experiments = list(created.defer("notes", "source").order_by("-pk")[:EXPERIMENTS_SHOWN])
    return Changes(
        since,
        new_experiments,
        created.count() if len(new_experiments) == EXPERIMENTS_SHOWN else len(new_experiments),
        runs.active().filter(queued_at__gt=since).count(),
        state_counts(state for state, number in ended.items() for _ in range(number)),
        findings.filter(created_at__gt=since).count(),
        new_comments,
        comments.count() if len(new_comments) == COMMENTS_SHOWN else len(new_comments),
    )


def _with_people(ids: Sequence[int]) -> list[Comment]:
    """Return comments with what they are about, newest first; mostly there are none, and the joins are saved."""
    if not ids:
        return []
    return list(Comment.objects.with_people().select_related("experiment").filter(pk__in=ids).order_by("-pk"))
