from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from parlab.ingest.batches.retention import attempts_due, series_retain
from parlab.lab.models import Attempt
from parlab.series import archive


class Command(BaseCommand):
    help = (
        "Move raw points of series to Parquet files and back. `series archive --days 90 --to file:///archive` lists"
        " what it would move, and moves it with --yes; `series remove --days 90` removes raw points for ever;"
        " `series restore EXPERIMENT/NUMBER` brings the points of a run back."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("action", choices=["archive", "remove", "restore"])
        parser.add_argument("run", nargs="?", help="for restore: a run as in its URL, such as pipeline-schedules/3")
        parser.add_argument("--days", type=float, help="only attempts that ended so many days ago")
        parser.add_argument("--to", default=settings.ARCHIVE_URL, help="URL of fsspec; by default PARLAB_ARCHIVE_URL")
        parser.add_argument("--yes", action="store_true", help="do it; without it, what would be done is listed")

    def handle(
        self, *args: Any, action: str, run: str | None, days: float | None, to: str, yes: bool, **options: Any
    ) -> None:
        if action == "restore":
            self._restore(run or "")
            return
        if days is None or days < 0:
            raise CommandError("--days is missing; say after how many days raw points are moved, for example --days 90")
        if action == "archive" and not to:
            raise CommandError("--to is missing; use for example file:///srv/archive or s3://bucket/parlab")
        due = attempts_due(days=days)
        if not yes:
            for attempt in due:
                self.stdout.write(f"{attempt}")
            self.stdout.write(f"{len(due)} attempts; repeat with --yes to {action} their raw points")
            return
        rows = series_retain(days=days, url=to if action == "archive" else "", limit=len(due))
        self.stdout.write(f"{sum(row.points for row in rows):,} points of {len(rows)} attempts")

    def _restore(self, run: str) -> None:
        slug, _, number = run.partition("/")
        numbers = [int(number)] if number.isdecimal() else []
        attempts = Attempt.objects.filter(run__experiment__slug=slug, run__number__in=numbers)
        if not attempts:
            raise CommandError(f"no run {run!r}; use its name in the URL, such as pipeline-schedules/3")
        for attempt in attempts.order_by("number"):
            try:
                self.stdout.write(f"{attempt}: {archive.restore(attempt.pk):,} points")
            except ValueError as error:
                self.stderr.write(f"{attempt}: {error}")
            except (archive.Damaged, OSError) as error:
                raise CommandError(str(error)) from error
