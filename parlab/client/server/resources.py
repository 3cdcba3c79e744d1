"""Objects of a server that people arrange: dashboards, reports, watches with their alerts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from parlab.client.http import Connection
from parlab.client.server.files import download

R = TypeVar("R", bound="Resource")


class Resource:
    """An object of the server; `data` has the fields of the API."""

    def __init__(self, connection: Connection, path: str, data: Mapping[str, Any] | None) -> None:
        self._connection, self.path, self.data = connection, path, dict(data or {})

    def refresh(self: R) -> R:
        """Read the object again, with all its fields."""
        self.data = dict(self._connection.json("GET", self.path))
        return self

    def send(self, method: str, below: str = "", body: Any = None) -> dict[str, Any]:
        """Send a request to an address below that of the object; return the answer, empty if there is none."""
        return dict(self._connection.json(method, f"{self.path}{below}", body) or {})


class Dashboard(Resource):
    """One dashboard."""

    def __init__(self, connection: Connection, number: int, data: Mapping[str, Any] | None = None) -> None:
        super().__init__(connection, f"/api/dashboards/{number}/", data)
        self.number = number

    def __repr__(self) -> str:
        return f"<Dashboard {self.number}: {self.data.get('name', '')}>"

    def save(
        self,
        *,
        name: str | None = None,
        panels: Sequence[Mapping[str, str]] | None = None,
        is_default: bool | None = None,
    ) -> Dashboard:
        """Save changes; refused where another person has saved the dashboard since it was read."""
        body = {
            "revision": self.data["revision"],
            "name": self.data["name"] if name is None else name,
            "panels": self.data["panels"] if panels is None else list(panels),
            "is_default": self.data["is_default"] if is_default is None else is_default,
        }
        self.data = self.send("PUT", "", body)
        return self

    def delete(self) -> None:
        """Delete the dashboard."""
        self.send("DELETE")


class Report(Resource):
    """One report; `refresh` adds its text and the numbers of its versions."""

    def __init__(self, connection: Connection, slug: str, data: Mapping[str, Any] | None = None) -> None:
        super().__init__(connection, f"/api/reports/{slug}/", data)
        self.slug = slug

    def __repr__(self) -> str:
        return f"<Report {self.slug}>"

    def save(self, *, title: str | None = None, text: str | None = None) -> Report:
        """Save changes; refused where another person has saved the report since it was read."""
        if "text" not in self.data:
            self.refresh()
        body = {
            "revision": self.data["revision"],
            "title": self.data["title"] if title is None else title,
            "text": self.data["text"] if text is None else text,
        }
        self.data = self.send("PUT", "", body)
        return self

    def publish(self) -> dict[str, Any]:
        """Publish the revision that was read; return number and address of the version."""
        return self.send("POST", "publish/", {"revision": self.data["revision"]})

    def version(self, number: int) -> Version:
        """Return a published version."""
        return Version(self._connection, self.slug, number).refresh()

    def versions(self) -> list[Version]:
        """Return the published versions by number."""
        return [self.version(number) for number in self.refresh().data["versions"]]

    def delete(self) -> None:
        """Delete the report with its published versions."""
        self.send("DELETE")


class Version(Resource):
    """One published version of a report; `data["files"]` names its exports, figures and tables."""

    def __init__(self, connection: Connection, slug: str, number: int, data: Mapping[str, Any] | None = None) -> None:
        super().__init__(connection, f"/api/reports/{slug}/versions/{number}/", data)
        self.slug, self.number = slug, number

    def __repr__(self) -> str:
        return f"<Version {self.number} of {self.slug}>"

    def download(self, name: str, target: str | Path) -> Path:
        """Store a file of the version: `report.html`, `report.pdf`, `figure-1.csv`; return the file."""
        return download(self._connection, f"{self.path}files/{quote(name)}", target)

    def draw(self) -> dict[str, Any]:
        """Let a worker draw the pictures and the PDF again."""
        return self.send("POST", "draw/")

    def links(self) -> list[dict[str, Any]]:
        """Return the links that need no login."""
        return list(self._connection.json("GET", f"{self.path}links/"))

    def share(self) -> dict[str, Any]:
        """Create a link that needs no login, or return the existing one."""
        return self.send("POST", "links/")

    def revoke(self, link: int) -> None:
        """Revoke a link, by its ID."""
        self.send("DELETE", f"links/{link}/")


class Watch(Resource):
    """One watch."""

    def __init__(self, connection: Connection, number: int, data: Mapping[str, Any] | None = None) -> None:
        super().__init__(connection, f"/api/watches/{number}/", data)
        self.number = number

    def __repr__(self) -> str:
        return f"<Watch {self.number}: {self.data.get('name', '')}>"

    def act(self, action: str) -> Watch:
        """Pause or resume the watch, or refresh it: look for results now."""
        self.data = self.send("POST", "", {"action": action})
        return self

    def run(self) -> dict[str, Any]:
        """Order runs now."""
        return self.send("POST", "run/")

    def alerts(self) -> list[dict[str, Any]]:
        """Return the alerts, newest first."""
        return list(self._connection.json("GET", f"{self.path}alerts/"))

    def answer(self, alert: int, answer: str, reason: str = "") -> dict[str, Any]:
        """Answer an alert, by its ID: acknowledge, expect, reject, fix or reopen."""
        return self.send("POST", f"alerts/{alert}/", {"answer": answer, "reason": reason})

    def bisect(self, alert: int, action: str = "start", **ends: str) -> dict[str, Any]:
        """Start, pause or resume the search for the commit of a change, optionally from `good` to `bad`."""
        return self.send("POST", f"alerts/{alert}/bisect/", {"action": action, **ends})

    def delete(self) -> None:
        """Delete the watch; its runs remain."""
        self.send("DELETE")
