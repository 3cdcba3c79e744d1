"""Stars, tags and notes of runs; comments on experiments and findings."""

from __future__ import annotations

from collections.abc import Iterable

from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone

from parlab.lab.models import Comment, Experiment, Finding, Run, RunNote, Star, TagOfRun
from parlab.lab.models.mark import COMMENT_LENGTH, NOTE_LENGTH

from . import storable
from .tagging import MAX_TAGS, tag_name


@transaction.atomic
def runs_star(*, runs: Iterable[Run], user: User) -> int:
    """Star runs for a user; returns how many the user had not starred."""
    ids = {run.pk for run in runs}
    new = ids - set(Star.objects.filter(run__in=ids, user=user).values_list("run_id", flat=True))
    Star.objects.bulk_create([Star(run_id=pk, user=user) for pk in sorted(new)], ignore_conflicts=True)
    return len(new)


def runs_unstar(*, runs: Iterable[Run], user: User) -> int:
    """Remove the stars of a user; returns how many there were."""
    return Star.objects.filter(run__in=[run.pk for run in runs], user=user).delete()[0]


@transaction.atomic
def runs_tag(*, runs: Iterable[Run], name: str) -> int:
    """Add a tag to runs; returns how many did not have it. Raises ValueError for an invalid tag."""
    name = tag_name(name)
    existing: dict[int, set[str]] = {run.pk: set() for run in runs}
    for run_id, tag in TagOfRun.objects.filter(run__in=existing).values_list("run_id", "name"):
        existing[run_id].add(tag)
    full = [pk for pk, names in existing.items() if name not in names and len(names) >= MAX_TAGS]
    if full:
        raise ValueError(f"{len(full)} of the runs already have {MAX_TAGS} tags; remove a tag first")
    new = [TagOfRun(run_id=pk, name=name) for pk, names in existing.items() if name not in names]
    TagOfRun.objects.bulk_create(new, ignore_conflicts=True)
    return len(new)


def runs_untag(*, runs: Iterable[Run], name: str) -> int:
    """Remove a tag from runs; returns how many had it."""
    return TagOfRun.objects.filter(run__in=[run.pk for run in runs], name=tag_name(name)).delete()[0]


def run_note_save(*, run: Run, text: str, user: User) -> RunNote | None:
    """Store the note of a run; an empty text deletes it. Raises ValueError for a text that is too long."""
    text = _text("note", text, NOTE_LENGTH)
    if not text:
        RunNote.objects.filter(run=run).delete()
        return None
    note, _ = RunNote.objects.update_or_create(run=run, defaults={"text": text, "edited_by": user})
    return note


def comment_add(*, experiment: Experiment, text: str, user: User, finding: Finding | None = None) -> Comment:
    """Add a comment on an experiment or one of its findings; raises ValueError for an empty or too long text."""
    text = _required(text)
    if finding is not None and finding.experiment_id != experiment.pk:
        raise ValueError(f"finding {finding.pk} belongs to another experiment; comment on it there")
    about = finding.message if finding is not None else ""
    return Comment.objects.create(experiment=experiment, finding=finding, about=about, text=text, author=user)


def comment_edit(*, comment: Comment, text: str) -> Comment:
    """Replace the text of a comment; raises ValueError for an empty or too long text."""
    text = _required(text)
    if text != comment.text:
        comment.text, comment.edited_at = text, timezone.now()
        comment.save(update_fields=["text", "edited_at"])
    return comment


def _required(text: str) -> str:
    text = _text("comment", text, COMMENT_LENGTH)
    if not text:
        raise ValueError("the comment is empty; write what others should know")
    return text


def _text(kind: str, text: str, limit: int) -> str:
    text = storable.text(text).replace("\r\n", "\n").strip()
    if len(text) > limit:
        raise ValueError(f"the {kind} has {len(text)} characters; use up to {limit}")
    return text
