"""A file that is imported again after it has grown or changed."""

from __future__ import annotations

import io
import threading
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import connection
from django.test import Client

from parlab.ingest.files import preview
from parlab.ingest.files.imports import Import, source_reingest, upload_import
from parlab.lab.models import Attempt, Experiment, Run, Source
from parlab.series import log, store
from tests.patience import PATIENCE_S

from .pages import SCHEDULES, megatron, zipped


def bring(user: User, data: bytes, name: str = "run.log", **options: Any) -> Import:
    [imported] = upload_import(
        **{"experiment": None, "name": name, "stream": io.BytesIO(data), "user": user, **options}
    )
    return imported


def steps_of(run: Run) -> list[int]:
    steps: list[int] = store.read(run.current_attempt().pk, "step_time_s", rank=0).steps.tolist()
    return steps


@pytest.mark.database
def test_a_grown_log_continues_its_run(user: User) -> None:
    whole = megatron(9)
    first = bring(user, megatron(4, total=9))
    run = Run.objects.get()
    assert steps_of(run) == [1, 2, 3, 4]
    again = bring(user, whole)
    assert (again.change, again.is_new, again.source) == ("continued", True, first.source)
    assert (Experiment.objects.count(), Source.objects.count(), Attempt.objects.count()) == (1, 1, 1)
    run.refresh_from_db()
    assert (run.number, steps_of(run)) == (1, list(range(1, 10)))
    assert b"".join(log.read_log(run.current_attempt().pk)) == whole
    source = Source.objects.get()
    assert (source.size, source.version, source.continued_at is None) == (len(whole), 1, False)
    source_reingest(source=source)
    assert steps_of(Run.objects.get()) == list(range(1, 10))


def test_a_second_click_after_growth_changes_nothing(user: User) -> None:
    bring(user, megatron(4, total=9))
    bring(user, megatron(9))
    assert bring(user, megatron(9)).change == "none"
    assert (Source.objects.count(), Run.objects.count()) == (1, 1)


def test_an_older_copy_of_a_stored_log_changes_nothing(user: User) -> None:
    bring(user, megatron(9))
    older = bring(user, megatron(4, total=9))
    assert (older.change, older.is_new) == ("none", False)
    assert steps_of(Run.objects.get()) == list(range(1, 10))


def test_a_launch_that_was_appended_becomes_the_next_run(user: User) -> None:
    bring(user, megatron(3))
    run = Run.objects.get()
    bring(user, megatron(3) + megatron(5, data=4))
    assert Run.objects.get(number=1) == run
    assert Run.objects.count() == 2


def test_a_line_that_was_cut_off_is_read_when_it_is_complete(user: User) -> None:
    whole = megatron(5)
    bring(user, whole[:-40])
    bring(user, whole)
    assert steps_of(Run.objects.get()) == [1, 2, 3, 4, 5]


def test_a_changed_file_of_an_experiment_is_the_next_version(user: User) -> None:
    first = bring(user, megatron(4))
    changed = bring(user, b"restarted\n" + megatron(4), experiment=first.experiment)
    assert (changed.change, changed.version) == ("changed", 2)
    assert preview.preview(changed, dry_run=False).version == 2
    assert sorted(Source.objects.values_list("version", flat=True)) == [1, 2]
    assert Run.objects.count() == 2
    third = bring(user, b"again\n" + megatron(4), experiment=first.experiment)
    assert third.version == 3


def test_a_changed_file_without_an_experiment_becomes_its_own_experiment(user: User) -> None:
    bring(user, megatron(4))
    other = bring(user, b"another machine\n" + megatron(4))
    assert (other.change, other.version) == ("new", 1)
    assert Experiment.objects.count() == 2


def test_a_banner_alone_does_not_claim_the_logs_that_begin_with_it(user: User) -> None:
    bring(user, b"| a | b |\n|---|---|\n| x | y |\n", "banner.md")
    other = bring(user, b"| a | b |\n|---|---|\n| x | y |\n" + SCHEDULES.encode(), "page.md")
    assert other.change == "new"
    assert Source.objects.count() == 2


def test_files_of_one_archive_are_no_versions_of_each_other(user: User) -> None:
    data = zipped({"a/train.log": megatron(3), "b/train.log": b"node b\n" + megatron(3)})
    imports = upload_import(experiment=None, name="runs.zip", stream=io.BytesIO(data), user=user)
    assert [(imported.change, imported.version) for imported in imports] == [("new", 1), ("new", 1)]


def test_a_grown_file_of_an_archive_continues_beside_a_new_one(user: User) -> None:
    bring(user, megatron(3, total=6), "b.log")
    data = zipped({"a.log": b"node a\n" + megatron(2), "b.log": megatron(6)})
    imports = upload_import(experiment=None, name="runs.zip", stream=io.BytesIO(data), user=user)
    assert [imported.change for imported in imports] == ["new", "continued"]
    assert Experiment.objects.count() == 1


def test_a_dry_run_announces_the_continuation_and_stores_nothing(user: User) -> None:
    first = bring(user, megatron(4, total=9))
    announced = bring(user, megatron(9), dry_run=True)
    assert announced.experiment == first.experiment
    assert preview.preview(announced, dry_run=True).status == "would continue"
    assert steps_of(Run.objects.get()) == [1, 2, 3, 4]


def test_the_upload_page_announces_the_continuation(page: Client, admin: User) -> None:
    bring(admin, megatron(4, total=9))
    grown = io.BytesIO(megatron(9))
    grown.name = "run.log"
    address = page.post("/import/", {"files": [grown]})["Location"]
    assert "has grown since it was imported" in page.get(address).content.decode()
    answer = page.post(address, follow=True)
    assert "run.log has grown; the runs continue with the new lines." in answer.content.decode()
    assert Run.objects.count() == 1


def test_the_command_says_that_a_file_has_grown(
    admin: User, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.log"
    for steps in (3, 5):
        path.write_bytes(megatron(steps, total=5))
        call_command("ingest", str(path))
    assert "has grown; continues its runs in run" in capsys.readouterr().out


@pytest.mark.database
@pytest.mark.django_db(transaction=True)
def test_two_clicks_on_a_grown_file_continue_it_once(user: User) -> None:
    bring(user, megatron(4, total=50))
    start = threading.Barrier(2)
    results: list[Import] = []

    def click() -> None:
        try:
            start.wait(PATIENCE_S)
            results.append(bring(user, megatron(50)))
        finally:
            connection.close()

    threads = [threading.Thread(target=click) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert sorted(imported.change for imported in results) == ["continued", "none"]
    assert steps_of(Run.objects.get()) == list(range(1, 51))
