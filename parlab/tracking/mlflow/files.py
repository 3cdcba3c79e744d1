"""Artifacts: the listing of a run and the proxied artifact store.

Paths of the store are `EXPERIMENT/RUN/artifacts/PATH`, as the artifact URI of a run says, and
`EXPERIMENT/models/MODEL/artifacts/PATH` for a logged model.
"""

from __future__ import annotations

import mimetypes
import re
from collections.abc import Iterator
from itertools import chain
from urllib.parse import quote, unquote

from django.http import FileResponse, HttpResponse, HttpResponseBase
from django.urls import reverse

from parlab.lab.models import Artifact, AuditEntry, TrackedRun
from parlab.tracking import artifacts

from .entities import artifact_root, model_by_id, run_by_id, run_of
from .protocol import JSON, Call, MlflowError, entries, integer, invalid, missing

_STORED = re.compile(
    r"[^/]{1,64}/(?:models/(?P<model>[^/]{1,80})|(?P<run>[^/]{1,256}))/artifacts(?:/(?P<path>.*))?", re.DOTALL
)


def of_run(call: Call) -> JSON:
    """List a folder of a run's artifacts, with paths relative to its root."""
    tracked = run_of(call)
    folder = safe_path(call.text("path", ""))
    files = [_entry_json(entry, entry.path) for entry in artifacts.listing(tracked, folder)]
    return {"root_uri": artifact_root(tracked), "files": files}


def get_artifact(call: Call) -> HttpResponseBase:
    """Download a file of a run, where MLflow's pages look for it."""
    return download_of(run_of(call), safe_path(call.text("path")))


def upload_artifact(call: Call) -> JSON:
    """Store a file of a run, as MLflow's pages do."""
    for name in ("run_uuid", "path"):
        if not call.data.get(name):
            raise invalid(f"Request must specify {name}.")
    tracked, path = run_of(call, is_change=True), safe_path(call.text("path"))
    first = call.http.read(artifacts.BLOCK_BYTES)
    if not first:
        raise invalid("Request must specify data.")
    _note_overwriting(call, tracked, path)
    artifacts.artifact_store(tracked=tracked, path=path, blocks=chain([first], _blocks(call)))
    return {}


def safe_path(path: str) -> str:
    """Return a path below a run's artifacts, empty for their root; raises MlflowError for one that climbs out."""
    path = unquote(path).strip()
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if path.startswith("/") or "\\" in path or "\x00" in path or ".." in parts or len(path) > artifacts.MAX_PATH:
        raise invalid("Invalid path")
    return "/".join(parts)


def listing(call: Call) -> JSON:
    """List a folder of the store, with paths relative to the folder."""
    tracked, folder = _place(call, call.text("path"), is_folder=True)
    entries_ = artifacts.listing(tracked, folder)
    return {"files": [_entry_json(entry, entry.path.rpartition("/")[2]) for entry in entries_]}


def _entry_json(entry: artifacts.Entry, path: str) -> JSON:
    return {"path": path, "is_dir": entry.is_dir} | ({} if entry.is_dir else {"file_size": entry.size})


def upload(call: Call) -> JSON:
    tracked, path = _place(call, call.text("artifact_path"))
    _refuse_deleted(tracked)
    _note_overwriting(call, tracked, path)
    artifacts.artifact_store(tracked=tracked, path=path, blocks=_blocks(call))
    return {}


def download(call: Call) -> HttpResponseBase:
    return download_of(*_place(call, call.text("artifact_path")))


def download_of(tracked: TrackedRun, path: str) -> HttpResponseBase:
    """Return a file among the artifacts of a run as a download."""
    artifact: Artifact | None = tracked.artifacts.filter(path=path).first()
    if artifact is None:
        raise missing("artifact", path)
    try:
        file = artifacts.object_open(artifact.sha256)
    except FileNotFoundError:
        artifacts.root_check()
        raise MlflowError("RESOURCE_DOES_NOT_EXIST", f"The bytes of artifact {path[:200]!r} are missing") from None
    # As a download and never as a page: an artifact may hold scripts.
    media_type = mimetypes.guess_type(path)[0] or "application/octet-stream"
    response = FileResponse(file, as_attachment=True, filename=path.rpartition("/")[2], content_type=media_type)
    response["X-Content-Type-Options"] = "nosniff"
    return response


def delete(call: Call) -> JSON:
    tracked, path = _place(call, call.text("artifact_path"))
    _refuse_deleted(tracked)
    if not artifacts.artifacts_delete(tracked=tracked, path=path):
        raise missing("artifact", path)
    _audited(call, AuditEntry.Action.DELETE)
    return {}


def _note_overwriting(call: Call, tracked: TrackedRun, path: str) -> None:
    if tracked.artifacts.filter(path=path).exists():
        _audited(call, AuditEntry.Action.CHANGE)


def _audited(call: Call, action: AuditEntry.Action) -> None:
    """Have the audit log record the request, if it succeeds: most reports of scripts are not."""
    call.http.audited = action  # type: ignore[attr-defined]


# --- uploads in several parts ----------------------------------------------------------------------------------------


def multipart_create(call: Call) -> JSON:
    tracked, _ = _upload_place(call)
    count = call.whole("num_parts", 1, at_least=1, at_most=10_000)
    upload_id = artifacts.upload_create(tracked=tracked)
    base = call.http.build_absolute_uri(reverse("mlflow-part", args=[upload_id, 0])).removesuffix("0")
    headers = {"Authorization": call.http.headers.get("Authorization", "")}
    parts = [{"part_number": number, "url": f"{base}{number}", "headers": headers} for number in range(1, count + 1)]
    return {"upload_id": upload_id, "credentials": parts}


def multipart_part(call: Call) -> HttpResponseBase:
    number, upload_id = integer(call.text("number")) or 0, call.text("upload_id")
    _require_upload(call, upload_id)
    digest = artifacts.part_store(upload_id=upload_id, number=number, blocks=_blocks(call))
    return HttpResponse(headers={"ETag": f'"{digest}"'})


def multipart_complete(call: Call) -> JSON:
    tracked, path = _upload_place(call)
    _refuse_deleted(tracked)
    _require_upload(call, call.text("upload_id"))
    numbers = [integer(part.get("part_number")) or 0 for part in entries(call, "parts")]
    _note_overwriting(call, tracked, path)
    artifacts.upload_complete(tracked=tracked, path=path, upload_id=call.text("upload_id"), numbers=numbers)
    return {}


def _upload_place(call: Call) -> tuple[TrackedRun, str]:
    """Return the run and the path that an upload goes to; clients send the path on their own disk as file name."""
    name = call.text("path").replace("\\", "/").rpartition("/")[2]
    return _place(call, f"{call.text('artifact_path')}/{name}")


def _require_upload(call: Call, upload_id: str) -> None:
    """Raise MlflowError unless the run that an upload was created for may be changed by the one who asks."""
    run_id = artifacts.upload_run(upload_id=upload_id)
    if run_id is not None:
        run_by_id(run_id, call)


def multipart_abort(call: Call) -> JSON:
    _require_upload(call, call.text("upload_id"))
    artifacts.upload_abort(upload_id=call.text("upload_id"))
    return {}


def _blocks(call: Call) -> Iterator[bytes]:
    while block := call.http.read(artifacts.BLOCK_BYTES):
        yield block


def _refuse_deleted(tracked: TrackedRun) -> None:
    if tracked.deleted_at is not None:
        raise invalid(
            f"The run {tracked.uuid} must be in the 'active' state. Current state is deleted; restore it first"
        )


def _place(call: Call, path: str, *, is_folder: bool = False) -> tuple[TrackedRun, str]:
    """Split a path of the store into run and path among its artifacts; files of a model belong to its run."""
    match = _STORED.fullmatch(path.strip("/"))
    rest = safe_path(match["path"] or "") if match else ""
    if match is None or not (rest or is_folder):
        raise invalid(f"Invalid artifact path {quote(path[:200])!r}; expected EXPERIMENT/RUN/artifacts/PATH")
    if match["model"] is None:
        return run_by_id(match["run"], call), rest
    model = model_by_id(match["model"], call)
    return model.tracked, f"{model.folder}/{rest}".rstrip("/")
