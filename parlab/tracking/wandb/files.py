"""Files of a run: addresses for uploads, uploads, listing and downloads. They are artifacts of the tracked run."""

from __future__ import annotations

import fnmatch
import hashlib
import mimetypes
from base64 import b64encode
from collections.abc import Iterator
from urllib.parse import quote

from django.core.signing import BadSignature, TimestampSigner
from django.http import FileResponse, HttpRequest, HttpResponse, HttpResponseBase

from parlab.lab.models import Artifact, TrackedRun, WandbRun
from parlab.tracking import artifacts
from parlab.whole_numbers import whole_number

from .projects import own, run_by_key, run_named
from .protocol import JSON, Call, Missing, WandbError
from .runs import run_json

PREFIX = "/wandb/files/"
SIGNED_S = 24 * 3_600
"""How long an address of a file can be read without a token: clients send none to the addresses that they are given."""
_signer = TimestampSigner(salt="parlab.tracking.wandb.files")


def upload_address(call: Call, tracked: TrackedRun, path: str) -> str:
    """Return the address to which a file of a run is uploaded."""
    return call.address(f"{PREFIX}{tracked.uuid}/{quote(path)}")


def file_address(call: Call, tracked: TrackedRun, path: str) -> str:
    """Return an address from which a file of a run can be read for a day."""
    signature = _signer.sign(f"{tracked.uuid}/{path}").removeprefix(f"{tracked.uuid}/{path}:")
    return f"{upload_address(call, tracked, path)}?signature={quote(signature)}"


def is_signed(request: HttpRequest, key: str, path: str) -> bool:
    """Return whether the address of a request was given out by `file_address` within a day."""
    try:
        _signer.unsign(f"{key}/{path}:{request.GET.get('signature', '')}", max_age=SIGNED_S)
    except BadSignature:
        return False
    return True


def credentials(call: Call) -> list[str]:
    """Return the headers that an upload needs: those of the client that asks for its address."""
    return [f"Authorization:{call.http.headers.get('Authorization', '')}"]


def create(call: Call) -> JSON:
    """Return the addresses to which files of a run are uploaded."""
    run = own(call, run_named(call))
    names = [artifacts.clean_path(name) for name in call.texts("files") or []]
    files = [{"name": name, "uploadUrl": upload_address(call, run.tracked, name)} for name in names]
    return {"createRunFiles": {"runID": run.tracked.uuid, "uploadHeaders": credentials(call), "files": files}}


def uploaded(_call: Call) -> JSON:
    return {"markRunFilesUploaded": {"success": True}}


def upload(call: Call) -> HttpResponseBase:
    """Store a file of a run."""
    run = own(call, run_by_key(call.text("key")))
    artifacts.artifact_store(tracked=run.tracked, path=call.text("path"), blocks=_blocks(call))
    return HttpResponse(status=200)


def _blocks(call: Call) -> Iterator[bytes]:
    while block := call.http.read(artifacts.BLOCK_BYTES):
        yield block


def download(call: Call) -> HttpResponseBase:
    """Return a file of a run, as a download and never as a page: it may hold scripts."""
    return file_response(call.text("key"), call.text("path"))


def file_response(key: str, path: str) -> HttpResponseBase:
    run = run_by_key(key)
    artifact: Artifact | None = run.tracked.artifacts.filter(path=path).first()
    if artifact is None:
        raise Missing("file", path)
    try:
        file = artifacts.object_open(artifact.sha256)
    except FileNotFoundError:
        raise WandbError(f"The bytes of file {path[:200]!r} are missing", 404) from None
    media_type = mimetypes.guess_type(path)[0] or "application/octet-stream"
    response = FileResponse(file, as_attachment=True, filename=path.rpartition("/")[2], content_type=media_type)
    response["X-Content-Type-Options"] = "nosniff"
    return response


def listing(call: Call) -> JSON:
    """List the files of a run whose names are asked for, or match a pattern."""
    run = run_named(call, "name", "run", "runName")
    names, pattern = call.texts("fileNames") or [], call.text("pattern").replace("%", "*")
    rows = [
        artifact
        for artifact in run.tracked.artifacts.all()
        if not artifact.path.startswith("artifacts/")
        and (artifact.path in names if names else fnmatch.fnmatch(artifact.path, pattern) if pattern else True)
    ]
    start = whole_number(call.text("fileCursor"), 9) or 0
    size = call.whole("fileLimit", 50)
    part = rows[start : start + size]
    edges = [
        {"node": _file_json(call, run, artifact), "cursor": str(start + index + 1)}
        for index, artifact in enumerate(part)
    ]
    info = {"endCursor": str(start + len(part)), "hasNextPage": start + len(part) < len(rows)}
    files = {"edges": edges, "pageInfo": info}
    node = run_json(run, call) | {"fileCount": len(rows), "files": files}
    return {"project": {"internalId": str(run.experiment_id), "readOnly": False, "run": node}}


def _file_json(call: Call, run: WandbRun, artifact: Artifact) -> JSON:
    address = file_address(call, run.tracked, artifact.path)
    return {
        "id": str(artifact.pk),
        "name": artifact.path,
        "url": address,
        "directUrl": address,
        "sizeBytes": str(artifact.size),
        "mimetype": mimetypes.guess_type(artifact.path)[0] or "",
        "updatedAt": artifact.updated_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "md5": _md5(artifact),
    }


def _md5(artifact: Artifact) -> str:
    """Return the digest that clients compare before they download a file again."""
    digest = hashlib.md5(usedforsecurity=False)
    try:
        with artifacts.object_open(artifact.sha256) as file:
            for block in artifacts.blocks_in(file):
                digest.update(block)
    except FileNotFoundError:
        return ""
    return b64encode(digest.digest()).decode()
