from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db.models import QuerySet

from parlab.ingest.batches.services import attempt_reingest
from parlab.ingest.files.imports import Refused, source_reingest
from parlab.lab.models import Attempt, Experiment, Run, Source
from parlab.lab.services.findings import findings_refresh


class Command(BaseCommand):
    help = (
        "Rebuild series, summaries, tables and findings: of runs that parlab launched from their raw logs, of imported"
        " runs from the stored bytes of their files. Repeating it changes nothing."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "runs",
            nargs="*",
            metavar="RUN",
            help="a run as in its URL, such as pipeline-schedules/3, or an experiment; by default all runs",
        )

    def handle(self, *args: Any, runs: list[str], **options: Any) -> None:
        damaged = 0
        for selected_runs in [_runs(name) for name in runs] or [Run.objects.all()]:
            # Evaluate these first: a rebuild may delete runs that a file no longer contains.
            sources = Source.objects.filter(pk__in=selected_runs.exclude(source=None).values("source"))
            if not runs:
                sources = Source.objects.all()
            experiments = set(selected_runs.filter(source=None).values_list("experiment", flat=True))
            attempts = Attempt.objects.filter(run__in=selected_runs.filter(source=None))
            for attempt in attempts.select_related("run__experiment").order_by("pk").iterator():
                points = attempt_reingest(attempt=attempt)
                self.stdout.write(f"{attempt}: {points:,} points")
            for source in sources.select_related("experiment", "created_by").order_by("pk"):
                try:
                    rebuilt = source_reingest(source=source)
                    self.stdout.write(f"{source.experiment}: {source}: {len(rebuilt.runs)} runs")
                except Refused as problem:
                    damaged += 1
                    self.stderr.write(f"{source.experiment}: {source}: not changed: {problem}")
            for experiment in Experiment.objects.filter(pk__in=experiments):
                findings_refresh(experiment=experiment)
        if damaged:
            raise CommandError(f"{damaged} imported files could not be rebuilt", returncode=1)


def _runs(name: str) -> QuerySet[Run]:
    slug, _, number = name.partition("/")
    selected = Run.objects.filter(experiment__slug=slug)
    if number:
        selected = selected.filter(number=int(number)) if number.isdecimal() else selected.none()
    if not selected.exists():
        raise CommandError(f"no run {name}; use its name in the URL, such as pipeline-schedules/3")
    return selected
