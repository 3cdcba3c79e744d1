"""`manage.py plan`: predict time and memory of trainings, before they run."""

import json
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from parlab.planner import published


class Command(BaseCommand):
    help = (
        "Predict rows of a file (model, parallel, hardware): one JSON object a line with id, iter_s, tflops_per_gpu,"
        " memory_gb, fits and basis."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--json", required=True, metavar="FILE", help="rows to predict; - reads standard input")
        parser.add_argument("--calibrate", metavar="FILE2", help="measured rows of the same clusters")

    def handle(self, *args: Any, json: str, calibrate: str | None, **options: Any) -> None:
        rows = _load(json)
        measured = _load(calibrate) if calibrate else []
        for prediction in published.predict_rows(rows, measured):
            self.stdout.write(_json(prediction))


def _load(name: str) -> list[Any]:
    try:
        text = sys.stdin.read() if name == "-" else Path(name).read_text()
        return list(published.load(text))
    except (OSError, ValueError) as error:
        raise CommandError(f"{name}: {error}") from error


def _json(prediction: dict[str, Any]) -> str:
    return json.dumps(prediction, allow_nan=False)
