"""Files to the server and from it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from parlab.client.http import Connection


def upload(connection: Connection, address: str, path: Path, fields: Mapping[str, str] | None = None) -> Any:
    """Send a form with one file and the fields that are not empty; return the answer."""
    kind, body = _multipart({name: value for name, value in (fields or {}).items() if value}, path)
    with closing(connection.with_long_timeout()) as patient:
        answer, _ = patient.request("POST", address, body, {"Content-Type": kind})
    return json.loads(answer)


def download(connection: Connection, address: str, target: str | Path) -> Path:
    """Store the answer of an address in a file; return the file."""
    content, _ = connection.request("GET", address, headers={"Accept": "*/*"})
    target = Path(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)
    return target


def _multipart(fields: Mapping[str, str], path: Path) -> tuple[str, bytes]:
    """Return content type and body of a form with one file."""
    boundary = uuid.uuid4().hex
    name = path.name.replace("\\", "_").replace('"', "_").replace("\r", "_").replace("\n", "_")
    parts = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="{field}"\r\n\r\n{value}\r\n'.encode()
        for field, value in fields.items()
    ]
    head = f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n'
    parts += [f"{head}Content-Type: application/octet-stream\r\n\r\n".encode(), path.read_bytes(), b"\r\n"]
    return f"multipart/form-data; boundary={boundary}", b"".join([*parts, f"--{boundary}--\r\n".encode()])
