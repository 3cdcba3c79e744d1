"""The notice that a node is about to be taken away: a file, or an address of the cloud's metadata, asked repeatedly.

Clouds announce the end of a spot machine 30 s to 2 minutes ahead. AWS answers 404 until then, Google FALSE, Azure a
list of events. All are asked with the headers that they require.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import NamedTuple

ASK_S = 2.0
"""Seconds between two questions."""
TIMEOUT_S = 2.0
MAX_BYTES = 64 << 10
MAX_CHARS = 200
_HEADERS = {"Metadata-Flavor": "Google", "Metadata": "true"}
_TOKEN_HEADERS = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
_NOTHING = ("", "false", "none", "null", "[]", "{}")
_AZURE = ("Preempt", "Terminate")
"""Types of Azure's events that end the machine."""


class SpotNotice(NamedTuple):
    place: str
    """Path of a file, or an http address."""

    def read(self) -> str:
        """Return the notice, at most MAX_CHARS long; empty while there is none, or nobody answers."""
        is_address = self.place.startswith(("http://", "https://"))
        found = self._asked() if is_address else self._in_file()
        return " ".join(found.split())[:MAX_CHARS]

    def _in_file(self) -> str:
        try:
            with Path(self.place).open(errors="replace") as file:
                return file.read(MAX_BYTES).strip() or "without a text"
        except OSError:
            return ""

    def _asked(self) -> str:
        try:
            text = _get(self.place, _HEADERS)
        except urllib.error.HTTPError as error:
            if error.code != 401:
                return ""
            text = self._with_token()
        except (OSError, ValueError):
            return ""
        return _ending(text)

    def _with_token(self) -> str:
        """Ask as version 2 of AWS' metadata requires: with a token."""
        parts = urllib.parse.urlsplit(self.place)
        address = f"{parts.scheme}://{parts.netloc}/latest/api/token"
        try:
            token = _get(address, _TOKEN_HEADERS, method="PUT")
            return _get(self.place, {**_HEADERS, "X-aws-ec2-metadata-token": token.strip()})
        except (OSError, ValueError):
            return ""


def read_place(text: str) -> SpotNotice | None:
    """Read the setting; raises ValueError. Empty: None."""
    if not text:
        return None
    if not text.startswith(("http://", "https://", "/")):
        raise ValueError(f"invalid --spot-notice {text!r}; use the absolute path of a file, or an http address")
    return SpotNotice(text)


def _get(address: str, headers: dict[str, str], method: str = "GET") -> str:
    request = urllib.request.Request(address, headers=headers, method=method)
    # Metadata is never behind a proxy.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=TIMEOUT_S) as answer:
        return str(answer.read(MAX_BYTES).decode(errors="replace"))


def _ending(text: str) -> str:
    """Return the part of an answer that ends the machine; empty if none does."""
    if text.strip().lower() in _NOTHING:
        return ""
    try:
        events = json.loads(text)["Events"]
        return "; ".join(
            f"{event['EventType']} {event.get('NotBefore', '')}".strip()
            for event in events
            if event.get("EventType") in _AZURE
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        return text
