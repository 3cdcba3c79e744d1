"""`manage.py report`: write an experiment as a Markdown document."""

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from parlab.lab.models import Experiment
from parlab.pages.rows.reports import experiment_report
from parlab.reports.markdown import markdown


class Command(BaseCommand):
    help = "Write an experiment's runs and findings as Markdown, to a file or standard output."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("slug", help="slug of the experiment, as in its URL")
        parser.add_argument("--output", type=Path, metavar="FILE", help="output file; default: standard output")

    def handle(self, *args: Any, slug: str, output: Path | None, **options: Any) -> None:
        experiment = Experiment.objects.filter(slug=slug).first()
        if experiment is None:
            slugs = ", ".join(Experiment.objects.values_list("slug", flat=True)[:10]) or "none"
            raise CommandError(f"no experiment {slug}; existing experiments: {slugs}")
        text = markdown(experiment_report(experiment))
        if output is None:
            self.stdout.write(text)
            return
        try:
            output.write_text(text)
        except OSError as error:
            raise CommandError(f"the report cannot be written to {output}: {error.strerror}") from error
