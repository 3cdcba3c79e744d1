"""What `init` gets, made such that a server accepts it: names, IDs, tags and numbers of ranks."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterable, Mapping
from typing import Any

NAME_LENGTH = 500
TAG_LENGTH = 250
VALUE_LENGTH = 8_000
ID_LENGTH = 64
_CONTROL = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]+")
_NOT_IN_ID = re.compile(r"[^A-Za-z0-9._:-]+")

log = logging.getLogger("parlab")


def text(value: Any, length: int = NAME_LENGTH) -> str:
    """Return a value as one line of text."""
    try:
        written = str(value)
    except Exception:  # a class of the script may fail to write itself
        written = type(value).__name__
    return _CONTROL.sub(" ", written).strip()[:length]


def tail(value: Any, length: int = 32_000) -> str:
    """Return the end of a text of several lines."""
    return (value if isinstance(value, str) else text(value))[-length:]


def name(field: str, value: Any, default: str = "") -> str:
    """Return a name without control characters, of at most NAME_LENGTH characters; warns where it had to change."""
    mended = text("" if value is None else value) or default
    if value is not None and not (isinstance(value, str) and value == mended) and (default or value != ""):
        log.warning("%s %.80r is recorded as %.80r", field, text(value), mended)
    return mended


def run_id(value: Any) -> str | None:
    """Return an ID of the characters that IDs have; the same for the same value, so that all ranks agree."""
    if value is None or value == "":
        return None
    written = text(value, 10_000)
    mended = _NOT_IN_ID.sub("-", written).lstrip("._:-")
    if mended != written or len(mended) > ID_LENGTH:
        digest = hashlib.sha256(written.encode()).hexdigest()[:12]
        mended = f"{mended[: ID_LENGTH - 13]}-{digest}".lstrip("-")
        log.warning("run_id %.80r is recorded as %r; use letters, digits, '.', '_', ':' and '-'", written, mended)
    return mended


def rank(value: Any) -> int | None:
    """Return a rank; None, which is that of the launcher, for what is none."""
    if value is None or (type(value) is int and 0 <= value < 2**31):
        return value
    log.warning("rank %.80s is not a whole number from 0; the launcher's is recorded", text(value))
    return None


def tags(value: Any) -> dict[str, str]:
    """Return tags as texts: a mapping, or names without values: a list, a tuple, a set or one text."""
    if value is None:
        return {}
    if isinstance(value, str):
        value = [value]
    if isinstance(value, Mapping):
        pairs = value.items()
    elif isinstance(value, Iterable):
        pairs = ((each, "") for each in value)  # type: ignore[assignment]
    else:
        log.warning("tags %.80s are not recorded; use a mapping or a list of names", text(value))
        return {}
    mended = {text(key, TAG_LENGTH): _tag(each) for key, each in pairs}
    return {key: each for key, each in mended.items() if key}


def _tag(value: Any) -> str:
    try:
        return str(value).encode("utf-8", "replace").decode()[:VALUE_LENGTH]
    except Exception:
        return type(value).__name__
