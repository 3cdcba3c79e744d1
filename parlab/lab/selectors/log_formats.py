"""Log formats that the team taught parlab, and their use."""

from __future__ import annotations

from typing import Any, NamedTuple

from django.db.models import Count, Max

from parlab.lab.models import LogFormat, Source


class LogFormatRow(NamedTuple):
    """The newest version of a format, with the files read with any of its versions."""

    newest: LogFormat
    files: int
    runs: int


def log_formats() -> list[LogFormat]:
    """Return the newest version of each format, by name."""
    newest: dict[str, LogFormat] = {}
    for version in LogFormat.objects.filter(is_deleted=False).select_related("created_by").order_by("name", "version"):
        newest[version.name] = version
    return list(newest.values())


def log_format_rows() -> list[LogFormatRow]:
    """Return the newest version of each format with its use."""
    by_name: dict[str, dict[str, Any]] = {
        row["log_format__name"]: row
        for row in Source.objects.filter(log_format__is_deleted=False)
        .values("log_format__name")
        .annotate(files=Count("pk", distinct=True), run_count=Count("runs", distinct=True), last=Max("created_at"))
        .order_by()
    }
    rows = []
    for newest in log_formats():
        use = by_name.get(newest.name, {})
        rows.append(LogFormatRow(newest, use.get("files", 0), use.get("run_count", 0)))
    return rows


def log_format_versions(name: str) -> list[LogFormat]:
    """Return the versions of a format, the newest first; empty if there is none."""
    return list(
        LogFormat.objects.filter(name=name, is_deleted=False)
        .select_related("created_by")
        .annotate(files=Count("sources"))
        .order_by("-version")
    )
