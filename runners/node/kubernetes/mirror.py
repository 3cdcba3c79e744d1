"""A copy of objects of the API server that a list fills and a watch keeps up to date, in a thread of its own."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from runners.node.jobs.system import SystemAway, SystemRefused
from runners.node.kubernetes.api import Api, KubernetesRefused, Object

WATCH_S = 50
"""Time after which the server ends a watch, which then goes on where it was."""
GONE = 410
"""Status of a version that the server has forgotten."""
AGAIN_S = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Pauses before the next try while the server is away."""

log = logging.getLogger(__name__)

Take = Callable[[str, Object], None]
"""Called with ADDED, MODIFIED or DELETED, and the object."""


class Gone(Exception):
    """Raised if the server has forgotten the version at which a watch should go on: all is listed again."""


class Mirror:
    """Follows one list; `take` gets every change, and `listed` the uids of all after each list."""

    def __init__(
        self, api: Api, path: str, query: Mapping[str, str], take: Take, listed: Callable[[set[str]], None]
    ) -> None:
        self._api, self._path, self._query = api, path, dict(query)
        self._take, self._listed = take, listed
        self._stop = threading.Event()
        self._ready = threading.Event()
        self._error: SystemAway | SystemRefused | None = None
        self._version = ""

    def start(self) -> None:
        """Begin to follow."""
        threading.Thread(target=self._follow, name=f"watching {self._path}", daemon=True).start()

    def stop(self) -> None:
        """End with the next event."""
        self._stop.set()

    def check(self, within_s: float = 0.0) -> None:
        """Raise what speaks against trusting the copy: that it is not there yet, or the error of the last try."""
        self._ready.wait(within_s)
        if self._error is not None:
            raise self._error
        if not self._ready.is_set():
            raise SystemAway("its objects have not been listed yet")

    def _follow(self) -> None:
        failures = 0
        while not self._stop.is_set():
            try:
                if not self._version:
                    self._list()
                self._error = None
                self._ready.set()
                self._watch()
                failures = 0
            except Gone:
                self._version = ""
            except (SystemAway, SystemRefused) as error:
                self._error = error
                if failures >= len(AGAIN_S) or (isinstance(error, KubernetesRefused) and error.status == GONE):
                    self._version = ""  # a server that was restored from a backup has never had it
                self._stop.wait(AGAIN_S[min(failures, len(AGAIN_S) - 1)])
                failures += 1
            except Exception:
                log.exception("watching %s failed; listing again", self._path)
                self._version = ""
                self._stop.wait(AGAIN_S[-1])

    def _list(self) -> None:
        uids: set[str] = set()
        version = ""
        for page in self._api.pages(self._path, **self._query):
            version = page["metadata"]["resourceVersion"]
            for item in page.get("items") or ():
                uids.add(item["metadata"]["uid"])
                self._take("ADDED", item)
        self._listed(uids)
        self._version = version

    def _watch(self) -> None:
        began = time.monotonic()
        for event in self._api.watch(self._path, WATCH_S, resourceVersion=self._version, **self._query):
            if self._stop.is_set():
                return
            kind, item = event.get("type", ""), event.get("object") or {}
            if kind == "ERROR":
                if item.get("code") == GONE:
                    raise Gone
                raise SystemAway(f"the watch ended: {item.get('message', '')}")
            self._version = item["metadata"]["resourceVersion"]
            if kind != "BOOKMARK":
                self._take(kind, item)
        if time.monotonic() - began < 1:
            time.sleep(AGAIN_S[1])  # a server that is just ending closes each watch at once


class Copy:
    """Objects by uid, as `read` makes them of their JSON; those that are deleted stay until they are forgotten."""

    def __init__(self, read: Callable[[Object], Any]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._present: dict[str, Any] = {}
        self._past: dict[str, Any] = {}
        self.version = 0
        """Counts changes."""

    def take(self, kind: str, item: Object) -> None:
        value, uid = self._read(item), item["metadata"]["uid"]
        if value is None:
            return
        with self._lock:
            self.version += 1
            if kind == "DELETED":
                # The watch of living pods tells so of one that has ended, too, and shows it as it was before.
                self._past[uid] = self._present.pop(uid, value)
            else:
                self._present[uid] = value

    def listed(self, uids: set[str]) -> None:
        """Take a complete list: what is not on it is gone."""
        with self._lock:
            self.version += 1
            for uid in set(self._present) - uids:
                self._past[uid] = self._present.pop(uid)

    def present(self) -> list[Any]:
        with self._lock:
            return list(self._present.values())

    def past(self) -> list[Any]:
        """Return those that are gone, as they were last seen."""
        with self._lock:
            return list(self._past.values())

    def forget(self, is_needed: Callable[[Any], bool]) -> None:
        """Forget those that are gone and not needed any more."""
        with self._lock:
            self._past = {uid: value for uid, value in self._past.items() if is_needed(value)}
