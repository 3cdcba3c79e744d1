"""The part of `parlab.Api` about what people decide and arrange: findings, views, dashboards, reports, watches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from parlab.client.http import Connection
from parlab.client.server.resources import Dashboard, Report, Watch


class Decisions:
    """Findings, views, dashboards, reports and watches of a server."""

    connection: Connection

    def findings(self, **filters: Any) -> list[dict[str, Any]]:
        """Return findings, newest first: findings(experiment="bert", open=True)."""
        texts = {name: str(value).lower() if isinstance(value, bool) else value for name, value in filters.items()}
        return list(self.connection.rows(f"/api/findings/?{urlencode(texts)}" if texts else "/api/findings/"))

    def acknowledge(self, finding: int, reason: str) -> dict[str, Any]:
        """Acknowledge a finding, by its ID, with a reason."""
        return dict(self.connection.json("PUT", f"/api/findings/{finding}/acknowledgement/", {"reason": reason}))

    def reopen(self, finding: int) -> dict[str, Any]:
        """Withdraw the acknowledgement of a finding."""
        return dict(self.connection.json("DELETE", f"/api/findings/{finding}/acknowledgement/"))

    def views(self) -> list[dict[str, Any]]:
        """Return the saved views of all pages."""
        return list(self.connection.json("GET", "/api/views/"))

    def save_view(self, name: str, address: str, *, is_default: bool = False) -> dict[str, Any]:
        """Save the path and query of a page under a name."""
        body = {"name": name, "address": address, "is_default": is_default}
        return dict(self.connection.json("POST", "/api/views/", body))

    def delete_view(self, view: int) -> None:
        """Delete a saved view, by its ID."""
        self.connection.json("DELETE", f"/api/views/{view}/")

    def dashboards(self) -> list[Dashboard]:
        """Return all dashboards by name."""
        return [
            Dashboard(self.connection, data["id"], data) for data in self.connection.json("GET", "/api/dashboards/")
        ]

    def create_dashboard(
        self, name: str, *, experiment: str | None = None, panels: Sequence[Mapping[str, str]] | None = None
    ) -> Dashboard:
        """Create a dashboard; each panel has `title`, `text`, `width` and `height`."""
        body = {"name": name, "experiment": experiment, **({} if panels is None else {"panels": list(panels)})}
        data = self.connection.json("POST", "/api/dashboards/", body)
        return Dashboard(self.connection, data["id"], data)

    def reports(self) -> list[Report]:
        """Return all reports, the last saved first."""
        return [Report(self.connection, data["slug"], data) for data in self.connection.json("GET", "/api/reports/")]

    def create_report(self, title: str, text: str = "", *, experiment: str | None = None) -> Report:
        """Create a report: Markdown with directives."""
        body = {"title": title, "text": text, "experiment": experiment}
        data = self.connection.json("POST", "/api/reports/", body)
        return Report(self.connection, data["slug"], data)

    def watches(self) -> list[Watch]:
        """Return all watches."""
        return [Watch(self.connection, data["id"], data) for data in self.connection.json("GET", "/api/watches/")]

    def create_watch(self, name: str, **options: Any) -> Watch:
        """Create a watch; the options are those of `POST /api/watches/`."""
        data = self.connection.json("POST", "/api/watches/", {"name": name, **options})
        return Watch(self.connection, data["id"], data)
