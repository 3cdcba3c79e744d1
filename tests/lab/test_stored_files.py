"""Files of runs in object storage: a real S3 server, reached as a bucket of a provider is."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import boto3
import pytest
import s3fs
from django.contrib.auth.models import User
from django.core.management import call_command
from django.test import Client
from moto.server import ThreadedMotoServer

from parlab.api.outages import outage_of
from parlab.ingest.summaries.traces import lanes_name, lanes_of, trace_import, traces_delete
from parlab.lab.models import Artifact, Experiment, Run, TrackedRun
from parlab.lab.services import stored_files
from parlab.serve import readiness
from parlab.tracking import artifacts
from parlab.tracking.artifacts import artifact_store, artifacts_delete, object_name, object_open, object_read
from parlab.tracking.runs import tracked_run_start

BUCKET = "lab"
BYTES = bytes(range(256)) * 4_000


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(server: str, settings: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """An empty bucket that is the storage of the server; credentials are in the environment."""
    variables = {"ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b", "ENDPOINT_URL": server, "DEFAULT_REGION": "us-east-1"}
    for name, value in variables.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("NO_PROXY", "*")
    settings.ARTIFACTS_DIR = tmp_path / "artifacts"
    settings.STORAGE_URL = f"s3://{BUCKET}/parlab"
    stored_files._remote.cache_clear()
    bucket = boto3.resource("s3", endpoint_url=server).Bucket(BUCKET)
    bucket.create()
    yield bucket
    bucket.objects.all().delete()
    bucket.delete()
    stored_files._remote.cache_clear()


@pytest.fixture
def tracked(user: User, experiment: Experiment) -> TrackedRun:
    return tracked_run_start(experiment=experiment, name="run", user=user)


def keys(bucket: Any) -> set[str]:
    return {each.key.removeprefix("parlab/") for each in bucket.objects.all()} - {stored_files.MARKER}


def on_disk(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}


def test_an_artifact_is_in_the_bucket_and_not_on_the_disk(bucket: Any, tracked: TrackedRun, settings: Any) -> None:
    artifact = artifact_store(tracked=tracked, path="model/weights.bin", blocks=[BYTES[:1000], BYTES[1000:]])
    assert keys(bucket) == {object_name(artifact.sha256)}
    assert on_disk(settings.ARTIFACTS_DIR) == set()
    assert object_read(artifact.sha256) == BYTES
    with object_open(artifact.sha256) as file:
        file.seek(len(BYTES) - 10)
        assert file.read() == BYTES[-10:]
    second = artifact_store(tracked=tracked, path="copy.bin", blocks=[BYTES])
    assert second.sha256 == artifact.sha256
    assert artifacts_delete(tracked=tracked, path="model") == 1
    assert keys(bucket) == {object_name(artifact.sha256)}  # the copy has the same bytes
    artifacts_delete(tracked=tracked, path="copy.bin")
    assert keys(bucket) == set()


def test_an_upload_in_parts_arrives_as_one_object(bucket: Any, tracked: TrackedRun, settings: Any) -> None:
    upload = artifacts.upload_create(tracked=tracked)
    for number, part in ((2, BYTES[500_000:]), (1, BYTES[:500_000])):
        artifacts.part_store(upload_id=upload, number=number, blocks=[part])
    artifact = artifacts.upload_complete(tracked=tracked, path="a.bin", upload_id=upload, numbers=[1, 2])
    assert object_read(artifact.sha256) == BYTES
    assert on_disk(settings.ARTIFACTS_DIR) == set()


def test_the_quota_counts_what_is_in_the_bucket(bucket: Any, tracked: TrackedRun, settings: Any) -> None:
    settings.STORAGE_LIMIT_GIB = len(BYTES) * 1.5 / 2**30
    artifact_store(tracked=tracked, path="a.bin", blocks=[BYTES])
    with pytest.raises(artifacts.BadArtifact, match="you keep"):
        artifact_store(tracked=tracked, path="b.bin", blocks=[BYTES, b"other"])
    assert len(keys(bucket)) == 1


def test_pages_and_api_send_what_is_in_the_bucket(bucket: Any, page: Client, tracked: TrackedRun) -> None:
    artifact_store(tracked=tracked, path="notes.txt", blocks=[b"learning rate 3e-4"])
    run: Run = tracked.run
    answer = page.get(f"/api/experiments/{run.experiment.slug}/runs/{run.number}/artifacts/notes.txt")
    assert (answer.status_code, answer.getvalue()) == (200, b"learning rate 3e-4")
    answer = page.get(f"{run.get_absolute_url()}artifacts/notes.txt")
    assert (answer.status_code, answer.getvalue()) == (200, b"learning rate 3e-4")
    bucket.objects.filter(Prefix="parlab/objects").delete()
    assert page.get(f"{run.get_absolute_url()}artifacts/notes.txt").status_code == 404


def test_a_trace_is_read_from_the_bucket_where_the_disk_has_no_copy(
    bucket: Any, tracked: TrackedRun, settings: Any, trace_file: Path
) -> None:
    with trace_file.open("rb") as file:
        trace = trace_import(run=tracked.run, name="trace.json", file=file, user=None)
    name = lanes_name(trace.sha256)
    sent = {key for key in keys(bucket) if key.startswith(name)}
    assert sent == on_disk(settings.ARTIFACTS_DIR)
    before = lanes_of(trace.sha256)
    stored_files.COPY_S, kept = -1, stored_files.COPY_S
    try:
        assert artifacts.uploads_prune() == 1
    finally:
        stored_files.COPY_S = kept
    assert on_disk(settings.ARTIFACTS_DIR) == set()
    after = lanes_of(trace.sha256)
    assert before is not None
    assert after is not None
    assert after.window(after.begin_s, after.end_s, most=100) == before.window(before.begin_s, before.end_s, most=100)
    traces_delete(run=tracked.run)
    assert (keys(bucket), on_disk(settings.ARTIFACTS_DIR)) == (set(), set())
    assert lanes_of(trace.sha256) is None


@pytest.fixture
def trace_file(tmp_path: Path) -> Path:
    rows = [
        {
            "ph": "X",
            "cat": "kernel",
            "name": f"k{at % 3}",
            "pid": 0,
            "tid": 7,
            "ts": 10 * at,
            "dur": 5,
            "args": {"stream": 7},
        }
        for at in range(50)
    ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": rows, "distributedInfo": {"rank": 0, "world_size": 1}}))
    return path


def test_what_was_stored_before_the_setting_is_read_and_can_be_moved(
    bucket: Any, tracked: TrackedRun, settings: Any
) -> None:
    url, settings.STORAGE_URL = settings.STORAGE_URL, ""
    artifact = artifact_store(tracked=tracked, path="old.bin", blocks=[BYTES])
    settings.STORAGE_URL = url
    assert object_read(artifact.sha256) == BYTES
    call_command("files", "--move", stdout=(told := StringIO()))
    assert told.getvalue().splitlines() == ["1 files moved", url]
    assert (keys(bucket), on_disk(settings.ARTIFACTS_DIR)) == ({object_name(artifact.sha256)}, set())
    assert object_read(artifact.sha256) == BYTES


def test_a_backup_has_the_files_of_the_bucket_and_brings_them_back(
    bucket: Any, tracked: TrackedRun, settings: Any, tmp_path: Path
) -> None:
    artifact = artifact_store(tracked=tracked, path="a.bin", blocks=[BYTES])
    upload = artifacts.upload_create(tracked=tracked)
    artifacts.part_store(upload_id=upload, number=1, blocks=[b"part"])
    stored_files.files_copy(tmp_path / "backup")
    bucket.objects.all().delete()
    shutil.rmtree(settings.ARTIFACTS_DIR)
    assert stored_files.is_missing()
    stored_files.files_restore(tmp_path / "backup")
    assert object_read(artifact.sha256) == BYTES
    assert keys(bucket) == {object_name(artifact.sha256)}
    later = artifacts.upload_complete(tracked=tracked, path="b.bin", upload_id=upload, numbers=[1])
    assert object_read(later.sha256) == b"part"
    settings.STORAGE_URL = ""  # to a server with a disk
    stored_files.files_restore(tmp_path / "backup")
    assert object_read(artifact.sha256) == BYTES


def test_without_the_bucket_nothing_is_lost_and_the_server_is_not_ready(
    bucket: Any, tracked: TrackedRun, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = artifact_store(tracked=tracked, path="a.bin", blocks=[b"bytes"])
    readiness.check_disk()
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    stored_files._remote.cache_clear()
    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(OSError) as caught:
        object_read(artifact.sha256)
    assert outage_of(caught.value)
    with pytest.raises(OSError):
        artifact_store(tracked=tracked, path="b.bin", blocks=[b"other"])
    assert not Artifact.objects.filter(path="b.bin").exists()
    assert on_disk(settings.ARTIFACTS_DIR) == set()
    with pytest.raises(readiness.Unready):
        readiness.check_disk()
