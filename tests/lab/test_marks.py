"""Stars, tags and notes of runs, comments, the archive and the deletion of runs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.contrib.auth.models import User

from parlab.lab.models import Attempt, Comment, Experiment, Finding, Run, RunNote
from parlab.lab.selectors.changes import changes_since
from parlab.lab.selectors.lists import experiment_list, run_list, run_marks, tag_names
from parlab.lab.services.archive import runs_archive, runs_contents, runs_delete, runs_restore
from parlab.lab.services.marks import comment_add, comment_edit, run_note_save, runs_star, runs_tag, runs_unstar
from parlab.lab.services.runs import config_launch
from parlab.lab.services.tagging import experiments_tag
from tests.pages.conftest import finish

pytestmark = [pytest.mark.django_db, pytest.mark.database]


@pytest.fixture
def runs(make_attempt: Callable[..., Attempt]) -> list[Run]:
    first = make_attempt(point={"train.micro_batch_size": 1})
    second = make_attempt(point={"train.micro_batch_size": 2}, config=first.run.config)
    return [finish(first), finish(second)]


def numbers(query: str) -> list[int]:
    result = run_list(query=query, page=None, sort="run")
    assert not result.filter.problems
    return sorted(line.run.number for line in result.rows)


def test_lists_of_runs_filter_by_stars_tags_and_notes(runs: list[Run], user: User) -> None:
    first, second = runs
    assert runs_star(runs=runs, user=user) == 2
    assert runs_star(runs=[first], user=user) == 0  # starred already
    assert runs_unstar(runs=[second], user=user) == 1
    assert runs_tag(runs=[second], name=" Baseline ") == 1
    run_note_save(run=first, text="warm cache,\r\nsee 3", user=user)
    assert numbers(f"starred:{user.username}") == numbers("starred:any") == [1]
    assert numbers("starred:nobody") == []
    assert numbers("-starred:any") == [2]
    assert numbers("tag:baseline") == [2]
    assert numbers("-tag:baseline") == [1]
    assert numbers("note:WARM") == numbers("note:any") == [1]
    assert tag_names() == ["baseline"]
    marks = run_marks([first.pk, second.pk])
    assert marks[first.pk].stars == [user.username]
    assert marks[first.pk].note == "warm cache,\nsee 3"
    assert marks[second.pk].tags == ["baseline"]


def test_a_run_also_has_the_tags_of_its_experiment(runs: list[Run], experiment: Experiment) -> None:
    experiments_tag(experiments=[experiment], name="paper")
    runs_tag(runs=runs[:1], name="best")
    assert numbers("tag:paper") == [1, 2]
    assert numbers("tag:paper,best") == [1, 2]
    assert numbers("tag:best state:finished") == [1]
    assert [row.experiment for row in experiment_list(query="tag:best", page=None).rows] == [experiment]
    assert not experiment_list(query="-tag:paper", page=None).rows


def test_terms_about_marks_report_what_they_accept() -> None:
    for query, message in (("archived:maybe", "use archived:yes"), ("starred>3", "write starred:3")):
        problems = run_list(query=query, page=None).filter.problems
        assert len(problems) == 1
        assert message in problems[0].message


def test_a_note_without_text_is_no_note(runs: list[Run], user: User) -> None:
    run_note_save(run=runs[0], text="something", user=user)
    assert run_note_save(run=runs[0], text="  \n", user=user) is None
    assert not RunNote.objects.exists()
    with pytest.raises(ValueError, match="the note has 20001 characters; use up to 20000"):
        run_note_save(run=runs[0], text="x" * 20_001, user=user)


def test_archived_runs_leave_lists_until_they_are_restored(runs: list[Run]) -> None:
    first, second = runs
    ids, active = runs_archive(runs=[first])
    assert (ids, active) == ([first.pk], [])
    assert numbers("") == [2]
    assert numbers("archived:yes") == [1]
    assert [line.run.number for line in run_list(query="archived:no", page=None).rows] == [second.number]
    assert runs_restore(run_ids=[first.pk, second.pk]) == [first.pk]
    assert numbers("") == [1, 2]


def test_active_runs_are_neither_archived_nor_deleted(make_attempt: Callable[..., Attempt]) -> None:
    run = make_attempt().run
    assert runs_archive(runs=[run]) == ([], [run])
    with pytest.raises(ValueError, match="cancel it first"):
        runs_delete(runs=[run])
    assert Run.objects.filter(pk=run.pk).exists()


def test_launching_a_point_whose_run_is_archived_restores_the_run(
    make_attempt: Callable[..., Attempt], user: User
) -> None:
    run = finish(make_attempt())
    runs_archive(runs=[run])
    launched = config_launch(config=run.config, user=user)
    assert launched.restored == 1
    assert Run.objects.filter(pk=run.pk).exists()


def test_deleting_runs_counts_and_removes_what_goes_along(runs: list[Run], user: User) -> None:
    run_note_save(run=runs[0], text="note", user=user)
    contents = runs_contents(runs=runs[:1])
    assert (contents.runs, contents.attempts, contents.notes) == (1, 1, 1)
    assert runs_delete(runs=runs[:1]) == 1
    assert not Run.everything.filter(pk=runs[0].pk).exists()
    assert not RunNote.objects.exists()
    assert Run.objects.filter(pk=runs[1].pk).exists()


def test_a_comment_survives_its_finding_with_the_words_it_was_about(experiment: Experiment, user: User) -> None:
    finding = Finding.objects.create(experiment=experiment, rule="r", severity="warning", message="3 is not 4")
    comment = comment_add(experiment=experiment, text=" The table rounds. ", user=user, finding=finding)
    finding.delete()
    comment.refresh_from_db()
    assert (comment.text, comment.finding, comment.about) == ("The table rounds.", None, "3 is not 4")
    with pytest.raises(ValueError, match="the comment is empty"):
        comment_edit(comment=comment, text=" ")
    assert comment_edit(comment=comment, text="It does.").edited_at is not None


def test_changes_are_those_of_others_since_a_moment(runs: list[Run], user: User) -> None:
    other = User.objects.create_user("other")
    experiment = runs[0].experiment
    before = experiment.created_at
    Run.objects.filter(pk=runs[0].pk).update(ended_at=experiment.created_at.replace(year=before.year + 1))
    comment_add(experiment=experiment, text="mine", user=user)
    comment_add(experiment=experiment, text="theirs", user=other)
    for changes in (
        changes_since(before, user_id=user.pk),
        changes_since(before, user_id=user.pk, experiment=experiment),
    ):
        assert [(state.state, state.number) for state in changes.ended] == [("finished", 1)]
        assert [comment.text for comment in changes.comments] == ["theirs"]
        assert not changes.is_empty
    late = Comment.objects.latest("pk").created_at.replace(year=before.year + 2)
    assert changes_since(late, user_id=user.pk).is_empty
