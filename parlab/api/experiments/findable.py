"""What pages of a run find: lines of its log, and what differs from another run."""

from __future__ import annotations

from typing import Any

from django.shortcuts import get_object_or_404
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers as drf
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from parlab.api.errors import Problem
from parlab.api.serializers import Errors
from parlab.ingest.summaries import logs
from parlab.lab.models import Run
from parlab.lab.selectors.comparison.differences import Row, attempt_side, other_side, run_difference
from parlab.series.log_search import ERROR, MAX_FOUND, text_pattern

LONGEST_TEXT = 200


class LineItem(drf.Serializer[Any]):
    """A line of a log."""

    number = drf.IntegerField(help_text="From 1, in the chosen output.")
    text = drf.CharField(trim_whitespace=False)


class LinesItem(drf.Serializer[Any]):
    """Lines of a log that were found."""

    lines = LineItem(many=True)
    is_more = drf.BooleanField(help_text="Whether there are more lines than these.")


class RowItem(drf.Serializer[Any]):
    """A field whose values differ."""

    name = drf.CharField()
    left = drf.CharField(help_text="Of this run, as the page shows it.")
    right = drf.CharField(help_text="Of the other one.")


class MeasureItem(drf.Serializer[Any]):
    """A measure of both runs."""

    name = drf.CharField()
    title = drf.CharField()
    unit = drf.CharField(allow_blank=True)
    left = drf.CharField()
    right = drf.CharField()
    relative = drf.CharField(allow_blank=True, help_text="Difference of the other run from this one.")
    is_noise = drf.BooleanField(help_text="Whether the difference is smaller than the noise.")


class DifferenceItem(drf.Serializer[Any]):
    """What differs between two runs."""

    left = drf.CharField()
    right = drf.CharField()
    settings = RowItem(many=True)
    environment = RowItem(many=True, allow_null=True, help_text="Null: one of them has recorded no environment.")
    results = MeasureItem(many=True)


class LogSearch(APIView):
    """Lines of the log of the current attempt that contain a text, or that look like errors."""

    @extend_schema(
        operation_id="log_find",
        parameters=[
            OpenApiParameter("text", str, description=f"To find, at most {LONGEST_TEXT} characters, in any case."),
            OpenApiParameter("errors", bool, description="Lines that look like errors instead of a text."),
            OpenApiParameter("node", int, description="Only the output of a node."),
            OpenApiParameter("rank", int, description="Only what a rank printed."),
        ],
        responses={200: LinesItem, 400: Errors, 404: Errors},
        description=f"At most {MAX_FOUND} lines.",
    )
    def get(self, request: Request, slug: str, number: int) -> Response:
        run = get_object_or_404(Run.objects.filter(experiment__slug=slug), number=number)
        attempt = run.current_attempt()
        part, problem = logs.requested_part(request.GET, run, attempt)
        if problem is not None:
            raise Problem(problem.message, field=problem.field, value=problem.value, remedy=problem.remedy)
        text, wants_errors = request.GET.get("text", "").strip(), request.GET.get("errors", "") in ("1", "true")
        if not wants_errors and not 0 < len(text) <= LONGEST_TEXT:
            remedy = "use ?text=NCCL or ?errors=true"
            raise Problem(
                f"text has {len(text)} of 1 to {LONGEST_TEXT} characters", field="text", value=text[:80], remedy=remedy
            )
        matches = logs.find(attempt, part, ERROR if wants_errors else text_pattern(text))
        lines = [{"number": line.number, "text": line.text} for line in matches.lines]
        return Response({"lines": lines, "is_more": matches.is_more})


class RunDifference(APIView):
    """What differs between a run and another one: settings, environment, results."""

    @extend_schema(
        operation_id="run_difference",
        parameters=[
            OpenApiParameter(
                "with", str, required=True, description="7, other-experiment/7, attempt-1 or v2 (the same point there)."
            )
        ],
        responses={200: DifferenceItem, 400: Errors, 404: Errors},
    )
    def get(self, request: Request, slug: str, number: int) -> Response:
        runs = Run.objects.select_related("experiment", "config").filter(experiment__slug=slug)
        run = get_object_or_404(runs, number=number)
        address = request.GET.get("with", "")[:200]
        left = attempt_side(run, run.attempts.with_members().filter(number=run.attempt_number).first())
        right = other_side(run, address)
        if right is None:
            remedy = "use the number of a run such as 7, other-experiment/7, attempt-1 or v2"
            raise Problem(f"no run, attempt or version {address!r}", field="with", value=address, remedy=remedy)
        difference = run_difference(left, right)
        measures = [
            {
                **{name: getattr(result, name) for name in ("name", "title", "unit")},
                "left": result.cells[0].text,
                "right": result.cells[1].text,
                "relative": result.cells[1].relative,
                "is_noise": result.cells[1].is_noise,
            }
            for result in difference.results
        ]
        return Response(
            {
                "left": left.title,
                "right": right.title,
                "settings": _rows([row for section in difference.settings for row in section.rows]),
                "environment": _rows(difference.environment) if difference.has_environments else None,
                "results": measures,
            }
        )


def _rows(rows: list[Row]) -> list[dict[str, str]]:
    return [row._asdict() for row in rows]
