"""`manage.py simulate`: simulate pipeline schedules on a network, with JSON input and output."""

import json
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from pydantic import ValidationError

from parlab.planner.schedule import Scenario, refusals, written


class Command(BaseCommand):
    help = "Simulate pipeline schedules on a network. Reads the request as JSON and prints the answer as JSON."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.formatter_class = RawDescriptionHelpFormatter
        parser.epilog = "fields of the request (see docs/understand/network.md):\n" + "\n".join(
            f"  {name}: {field.description}" for name, field in Scenario.model_fields.items()
        )
        parser.add_argument(
            "question", nargs="?", default="{}", help='JSON like {"delay_ms": 10}, a file, or - for standard input'
        )
        parser.add_argument("--timeline", action="store_true", help="include every pass and message")

    def handle(self, *args: Any, question: str, timeline: bool, **options: Any) -> None:
        try:
            scenario = Scenario.model_validate(_question_data(question))
        except ValidationError as error:
            raise CommandError("\n".join(refusal.message for refusal in refusals(error))) from error
        answer = written(scenario, with_timeline=timeline)
        self.stdout.write(answer.model_dump_json(indent=None if timeline else 1, exclude_none=True))


def _question_data(question: str) -> dict[str, Any]:
    try:
        text = question if question.lstrip().startswith("{") else _input_text(question)
        data = json.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"cannot read the request from {question}: {error}") from error
    except ValueError as error:
        raise CommandError(
            f'the request is not valid JSON ({error}); use an object, for example {{"delay_ms": 10}}'
        ) from error
    if not isinstance(data, dict):
        raise CommandError('the request is not a JSON object; use an object, for example {"delay_ms": 10}')
    return data


def _input_text(path: str) -> str:
    return sys.stdin.read() if path == "-" else Path(path).read_text()
