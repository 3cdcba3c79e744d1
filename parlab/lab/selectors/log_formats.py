"""Log formats that the team taught parlab, and their use."""

from __future__ import annotations

from typing import NamedTuple

from django.db.models import Count

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
    uses = (
        Source.objects.filter(log_format__is_deleted=False)
        .values_list("log_format__name")
        .annotate(files=Count("pk", distinct=True), run_count=Count("runs", distinct=True))
        .order_by()
    )
    by_name: dict[str, tuple[int, int]] = {str(name): (files, runs) for name, files, runs in uses}
    rows = []
    for newest in log_formats():
        files, runs = by_name.get(newest.name, (0, 0))
        rows.append(LogFormatRow(newest, files, runs))
    return rows


def log_format_versions(name: str) -> list[LogFormat]:
    """Return the versions of a format, the newest first; empty if there is none."""
    return list(
        LogFormat.objects.filter(name=name, is_deleted=False)
        .select_related("created_by")
        .annotate(files=Count("sources"))
        .order_by("-version")
    )
