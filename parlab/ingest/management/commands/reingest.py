from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db.models import QuerySet

from parlab.ingest.services import attempt_reingest
from parlab.lab.models import Attempt


class Command(BaseCommand):
    help = "Build series and summaries again from the raw logs. Doing it twice changes nothing more."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "runs",
            nargs="*",
            metavar="RUN",
            help="a run as in its address, like pipeline-schedules/3, or an experiment; without any, all runs",
        )

    def handle(self, *args: Any, runs: list[str], **options: Any) -> None:
        for attempts in [_attempts(run) for run in runs] or [Attempt.objects.all()]:
            for attempt in attempts.select_related("run__experiment").order_by("pk").iterator():
                points = attempt_reingest(attempt=attempt)
                self.stdout.write(f"{attempt}: {points:,} points")


def _attempts(name: str) -> QuerySet[Attempt]:
    slug, _, number = name.partition("/")
    found = Attempt.objects.filter(run__experiment__slug=slug)
    if number:
        found = found.filter(run__number=int(number)) if number.isdecimal() else found.none()
    if not found.exists():
        raise CommandError(f"no run {name}; name it as in its address, like pipeline-schedules/3")
    return found
