"""The page of a reported run, its artifacts, and the table of names of an experiment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from parlab.formats.grammar.names import launch_of, setting_of
from parlab.lab.models import Experiment, NameMeaning, Run, TrackedRun
from parlab.tracking import runs
from parlab.tracking.artifacts import artifact_store
from parlab.tracking.meanings import meanings_set, metric_guess, metric_rows
from parlab.tracking.point import Point

HOSTILE = b"<script>alert(1)</script>\n"


@pytest.fixture
def tracked(experiment: Experiment, user: User, settings: Any, tmp_path: Path) -> TrackedRun:
    settings.ARTIFACTS_DIR = tmp_path / "artifacts"
    tracked = runs.tracked_run_start(experiment=experiment, user=user, name="warm-up", tags={"team": "<b>parallel</b>"})
    runs.parameters_set(tracked=tracked, parameters={"per_device_train_batch_size": "4", "my_gpus": "8"})
    points = [
        Point(key, value, 1_000 * step, step)
        for step in range(1, 9)
        for key, value in (("train/loss", 2.0), ("my/speed", 900.0), ("mem", 3.0))
    ]
    runs.points_append(tracked=tracked, points=points)
    artifact_store(tracked=tracked, path="notes/readme.txt", blocks=[HOSTILE])
    artifact_store(tracked=tracked, path="weights.bin", blocks=[b"\x00\x01" * 50])
    runs.tracked_run_update(tracked=tracked, status="FINISHED")
    return tracked


def test_the_page_of_a_run_shows_what_it_reported(page: Client, tracked: TrackedRun) -> None:
    text = page.get(f"{tracked.run.get_absolute_url()}details/").content.decode()
    assert "<caption>Parameters</caption>" in text
    assert "per_device_train_batch_size" in text
    assert "&lt;b&gt;parallel&lt;/b&gt;" in text
    assert "notes/readme.txt" in text
    assert "<code>train/loss</code>" in text
    assert 'id="arguments"' not in text


def test_an_artifact_is_downloaded_and_never_opened(page: Client, tracked: TrackedRun) -> None:
    response = page.get(f"{tracked.run.get_absolute_url()}artifacts/notes/readme.txt")
    assert b"".join(response) == HOSTILE
    assert response["Content-Disposition"] == 'attachment; filename="readme.txt"'
    assert (response["Content-Type"], response["X-Content-Type-Options"]) == ("application/octet-stream", "nosniff")
    assert "sandbox" in response["Content-Security-Policy"]


def test_the_preview_of_an_artifact_is_escaped(page: Client, tracked: TrackedRun) -> None:
    text = page.get(f"{tracked.run.get_absolute_url()}artifact-text/notes/readme.txt").content.decode()
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    binary = page.get(f"{tracked.run.get_absolute_url()}artifact-text/weights.bin").content.decode()
    assert "Binary file, no preview" in binary


@pytest.mark.parametrize("path", ["artifacts/../../etc/passwd", "artifacts/missing", "artifact-text/%2e%2e/secret"])
def test_a_path_that_is_no_artifact_is_not_found(page: Client, tracked: TrackedRun, path: str) -> None:
    assert page.get(f"{tracked.run.get_absolute_url()}{path}").status_code == 404


def test_artifacts_require_a_login(client: Client, tracked: TrackedRun) -> None:
    response = client.get(f"{tracked.run.get_absolute_url()}artifacts/notes/readme.txt")
    assert response.status_code == 302
    assert "/login/" in response["Location"]


def test_the_table_of_names_shows_the_guess_first(page: Client, tracked: TrackedRun) -> None:
    text = page.get(f"{tracked.run.experiment.get_absolute_url()}names/").content.decode()
    assert '<option value="" selected>Automatic: Loss</option>' in text
    assert "Automatic: micro_batch_size" in text
    assert '<option value="" selected>Automatic: no meaning</option>' in text


def test_a_chosen_meaning_changes_the_summary_and_the_configuration(page: Client, tracked: TrackedRun) -> None:
    url = f"{tracked.run.experiment.get_absolute_url()}names/"
    names = [row.name for row in metric_rows(tracked.run.experiment)]
    chosen = {"my/speed": "tokens_per_s", "mem": "memory_peak_gib", "train/loss": "-"}
    data = {"kind": "metric"}
    for number, name in enumerate(names):
        data |= {f"name-{number}": name, f"meaning-{number}": chosen.get(name, "")}
    response = page.post(url, data, follow=True)
    assert "Saved; 1 run computed again." in response.content.decode()
    run = Run.objects.get(pk=tracked.run_id)
    assert run.summary["sources"] == {"memory_peak_bytes": "mem", "tokens_per_s": "my/speed"}
    assert (run.tokens_per_s, run.memory_max_bytes) == (900.0, 3.0 * 2**30)
    assert "loss" not in run.summary
    page.post(url, {"kind": "setting", "name-0": "my_gpus", "meaning-0": "world_size"})
    run.refresh_from_db()
    assert run.gpus == 8
    page.post(url, {"kind": "metric"})
    assert Run.objects.get(pk=run.pk).summary["sources"] == {"loss": "train/loss"}


def test_names_are_only_changed_with_permission(client: Client, tracked: TrackedRun, user: User) -> None:
    client.force_login(user)
    url = f"{tracked.run.experiment.get_absolute_url()}names/"
    assert client.get(url).status_code == 200
    assert client.post(url, {"kind": "metric"}).status_code == 403


def test_an_unknown_meaning_is_refused_and_changes_nothing(page: Client, tracked: TrackedRun) -> None:
    with pytest.raises(ValueError, match="unknown meaning 'speed' of 'mem'; use one of loss, "):
        meanings_set(experiment=tracked.run.experiment, kind="metric", meanings={"mem": "speed"})
    url = f"{tracked.run.experiment.get_absolute_url()}names/"
    data = {"kind": "metric", "name-0": "mem", "meaning-0": "speed"}
    assert "Not saved: unknown meaning" in page.post(url, data, follow=True).content.decode()
    assert page.post(url, {"kind": "neither"}).status_code == 404
    assert not NameMeaning.objects.exists()


def test_guesses_name_the_unit_that_they_read() -> None:
    assert metric_guess("train/step_time_ms") == "step_time_ms"
    assert metric_guess("eval/loss") == ""
    assert setting_of("model.hidden_size") == "hidden_size"
    assert setting_of("mixed_precision") == "precision"
    assert launch_of({"a": "16", "prec": "bf16"}, {"a": "num_layers", "prec": "precision"}).num_layers == 16
    assert launch_of({"prec": "bf16"}, {"prec": "precision"}).precision == "bf16"
    assert launch_of({"micro_batch_size": "4"}, {"micro_batch_size": ""}).micro_batch_size is None
