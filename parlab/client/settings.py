"""Address and token of the server, and the directory of spools: arguments, then environment, then `parlab login`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

DEFAULT_URL = "http://127.0.0.1:8000"


class Settings(NamedTuple):
    url: str
    token: str


def home() -> Path:
    """Return the client's directory: PARLAB_HOME, else `.parlab` in the home directory."""
    return Path(os.environ.get("PARLAB_HOME") or Path.home() / ".parlab")


def server_data_dir() -> Path:
    """Return where `parlab serve` of this user keeps its data: PARLAB_DATA_DIR, else `parlab` in the XDG directory."""
    if os.environ.get("PARLAB_DATA_DIR"):
        return Path(os.environ["PARLAB_DATA_DIR"])
    base = os.environ.get("XDG_DATA_HOME", "")
    # The specification says to ignore relative paths. A user without a home keeps the ~.
    return Path(base if os.path.isabs(base) else os.path.expanduser("~/.local/share")) / "parlab"


def settings(url: str | None = None, token: str | None = None) -> Settings:
    """Return where to report; an argument comes first, then PARLAB_URL and PARLAB_TOKEN, then the stored login."""
    stored = _stored()
    url = url or os.environ.get("PARLAB_URL") or stored.get("url") or DEFAULT_URL
    token = token or os.environ.get("PARLAB_TOKEN") or stored.get("token") or ""
    return Settings(url.rstrip("/"), token)


def store(login: Settings) -> Path:
    """Store a login in the client's directory, readable only by its owner; returns the file."""
    path = home() / "login.json"
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_suffix(".draft")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        json.dump(login._asdict(), file)
    draft.replace(path)
    return path


def _stored() -> dict[str, Any]:
    try:
        login = json.loads((home() / "login.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return login if isinstance(login, dict) else {}
