"""`manage.py plan`: predict time and memory of trainings before they run."""

import json
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import connection
from pydantic import ValidationError

from parlab.lab.models import Device
from parlab.lab.selectors.analysis.plans import device_of, plan_context, priced
from parlab.planner.job.cluster import device
from parlab.planner.job.hardware import devices as hardware_devices
from parlab.planner.job.prices import list_price
from parlab.planner.publications import published
from parlab.planner.requests.answer import answer
from parlab.planner.requests.answer_json import WrittenPlan, written
from parlab.planner.requests.fitting import read_question
from parlab.planner.requests.refusals import refusals


class Command(BaseCommand):
    help = (
        "Predict each row of a file (model, parallel, hardware) and print one JSON object per line with id, iter_s,"
        " tflops_per_gpu, memory_gb, fits, fits_probability and basis; or answer one question like POST /api/plan/."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        source = parser.add_mutually_exclusive_group(required=True)
        source.add_argument("--json", metavar="FILE", help="rows to predict; - for standard input")
        source.add_argument("--question", metavar="FILE", help="question as JSON; - for standard input")
        parser.add_argument("--huggingface", metavar="CONFIG", help="config.json whose model the question is about")
        parser.add_argument("--calibrate", metavar="FILE2", help="measured rows to calibrate on")

    def handle(
        self,
        *args: Any,
        json: str | None,
        question: str | None,
        huggingface: str | None,
        calibrate: str | None,
        **options: Any,
    ) -> None:
        if json is None:
            self.stdout.write(_answer(question or "-", huggingface))
            return
        rows = _load(json)
        measured = _load(calibrate) if calibrate else []
        if problems := published.left_out(measured):
            self.stderr.write(f"{calibrate}: {len(problems)} of {len(measured)} rows calibrate nothing: {problems[0]}")
        for prediction in published.predict_rows(rows, measured):
            self.stdout.write(_json(prediction))


def _answer(name: str, huggingface: str | None) -> str:
    try:
        data = json.loads(_input_text(name))
        if huggingface and isinstance(data, dict):
            data = {"huggingface": json.loads(_input_text(huggingface))} | data
        return (_from_catalogue(data) if _has_catalogue() else _from_planner(data)).model_dump_json(indent=1)
    except ValidationError as error:
        raise CommandError("; ".join(refusal.message for refusal in refusals(error))) from error
    except (OSError, ValueError, RecursionError) as error:
        raise CommandError(f"{name}: {error}") from error


def _has_catalogue() -> bool:
    """Return whether the database has a device catalogue; a fresh clone has no tables."""
    return Device._meta.db_table in connection.introspection.table_names()


def _from_catalogue(data: Any) -> WrittenPlan:
    validated = read_question(data, plan_context())
    question, price = priced(validated)
    return written(answer(question, device_of(question)), price, validated.assumed)


def _from_planner(data: Any) -> WrittenPlan:
    """Answer with the planner's own devices and list prices."""
    validated = read_question(data, {"devices": [gpu.name for gpu in hardware_devices()]})
    price = list_price(validated.gpu) if validated.price is None else None
    question = validated.model_copy(update={"price": price.per_hour}) if price else validated
    return written(answer(question, device(question.gpu)), price, validated.assumed)


def _input_text(name: str) -> str:
    return sys.stdin.read() if name == "-" else Path(name).read_text()


def _load(name: str) -> list[Any]:
    try:
        return list(published.load(_input_text(name)))
    except (OSError, ValueError) as error:
        raise CommandError(f"{name}: {error}") from error


def _json(prediction: dict[str, Any]) -> str:
    return json.dumps(prediction, allow_nan=False)
