from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db.models import QuerySet

from parlab.ingest.imports import Refused, source_reingest
from parlab.ingest.services import attempt_reingest
from parlab.lab.models import Attempt, Experiment, Run, Source
from parlab.lab.services import findings_refresh


class Command(BaseCommand):
    help = (
        "Build series, summaries, tables and findings again: of our own runs from their raw logs, of imported ones from"
        " the bytes of their files. Doing it twice changes nothing more."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "runs",
            nargs="*",
            metavar="RUN",
            help="a run as in its address, like pipeline-schedules/3, or an experiment; without any, all runs",
        )

    def handle(self, *args: Any, runs: list[str], **options: Any) -> None:
        damaged = 0
        for found in [_runs(name) for name in runs] or [Run.objects.all()]:
            # Their own lists: a rebuild may remove runs that a file no longer holds.
            sources = Source.objects.filter(pk__in=found.exclude(source=None).values("source"))
            if not runs:
                sources = Source.objects.all()
            experiments = set(found.filter(source=None).values_list("experiment", flat=True))
            attempts = Attempt.objects.filter(run__in=found.filter(source=None))
            for attempt in attempts.select_related("run__experiment").order_by("pk").iterator():
                points = attempt_reingest(attempt=attempt)
                self.stdout.write(f"{attempt}: {points:,} points")
            for source in sources.select_related("experiment", "created_by").order_by("pk"):
                try:
                    rebuilt = source_reingest(source=source)
                    self.stdout.write(f"{source.experiment}: {source}: {len(rebuilt.runs)} runs")
                except Refused as problem:
                    damaged += 1
                    self.stderr.write(f"{source.experiment}: {source}: left as it is: {problem}")
            for experiment in Experiment.objects.filter(pk__in=experiments):
                findings_refresh(experiment=experiment)
        if damaged:
            raise CommandError(f"{damaged} imported files could not be read again", returncode=1)


def _runs(name: str) -> QuerySet[Run]:
    slug, _, number = name.partition("/")
    found = Run.objects.filter(experiment__slug=slug)
    if number:
        found = found.filter(number=int(number)) if number.isdecimal() else found.none()
    if not found.exists():
        raise CommandError(f"no run {name}; name it as in its address, like pipeline-schedules/3")
    return found
