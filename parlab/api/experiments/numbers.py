"""What a run contains beyond its summary: series, parameters, tags and artifacts."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator
from typing import Any

import nanoarrow
import numpy as np
from django.http import FileResponse, StreamingHttpResponse
from django.shortcuts import get_object_or_404
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from nanoarrow import ipc
from rest_framework import serializers as drf
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from parlab.api.errors import Problem
from parlab.api.serializers import Errors
from parlab.lab.models import Artifact, Attempt, Run
from parlab.publishing.figures.chains import Joined
from parlab.series.columns import Columns
from parlab.tracking.artifacts import object_open

MAX_POINTS = 1_000_000
"""Maximum number of points per rank in JSON; CSV and Arrow have no limit."""
ARROW = "application/vnd.apache.arrow.stream"
_ROWS = 5_000
_BATCH_ROWS = 100_000


KIND = "How the values of a file came about: printed, derived, average, smoothed, cumulative or part; empty for others."


class SeriesItem(drf.Serializer[Any]):
    """Name and length of one series."""

    metric = drf.CharField()
    rank = drf.IntegerField()
    points = drf.IntegerField()
    kind = drf.CharField(help_text=KIND)


class SeriesList(drf.Serializer[Any]):
    """The series of an attempt of a run."""

    attempt = drf.IntegerField()
    series = SeriesItem(many=True)


class SeriesColumns(drf.Serializer[Any]):
    """The points of one rank as columns; values that JSON cannot express are "NaN", "Infinity" or "-Infinity"."""

    rank = drf.IntegerField()
    total = drf.IntegerField(help_text="Number of points before thinning.")
    steps = drf.ListField(child=drf.IntegerField())
    times = drf.ListField(child=drf.FloatField(), help_text="Unix seconds.")
    values = drf.ListField(child=drf.FloatField())


class OneSeriesAnswer(drf.Serializer[Any]):
    """One metric of a run."""

    metric = drf.CharField()
    attempt = drf.IntegerField()
    kind = drf.CharField(help_text=KIND)
    is_thinned = drf.BooleanField()
    ranks = SeriesColumns(many=True)


class ArtifactItem(drf.Serializer[Any]):
    """A file that a run reported."""

    path = drf.CharField()
    size = drf.IntegerField(help_text="Bytes.")
    sha256 = drf.CharField()
    updated_at = drf.DateTimeField()


class ReportedAnswer(drf.Serializer[Any]):
    """What a script reported of its run; empty for runs that parlab launched."""

    uuid = drf.CharField(allow_null=True, help_text="The run ID of MLflow clients.")
    parameters = drf.DictField(child=drf.CharField())
    tags = drf.DictField(child=drf.CharField())
    sources = drf.DictField(child=drf.CharField(), help_text="Quantity of the summary -> metric behind it.")
    artifacts = ArtifactItem(many=True)


def find_run(slug: str, number: int) -> Run:
    return get_object_or_404(Run.objects.select_related("experiment"), experiment__slug=slug, number=number)


def _attempt(run: Run, request: Request) -> Attempt:
    number = whole_number(request, "attempt", run.attempt_number) or run.attempt_number
    return get_object_or_404(run.attempts, number=number)


def whole_number(request: Request, field: str, default: int | None = None, at_least: int = -(2**31)) -> int | None:
    text = request.GET.get(field, "")
    if not text:
        return default
    try:
        number = int(text) if len(text) < 12 else None
    except ValueError:
        number = None
    if number is None or number < at_least:
        raise Problem(
            f"{field} {text[:40]!r} is not a whole number of at least {at_least}",
            field=field,
            value=text,
            remedy="use a number like 1000",
        )
    return number


class SeriesOfRun(APIView):
    """The series of a run's current attempt, with those before it in a chain, or of `?attempt=`."""

    @extend_schema(
        operation_id="series_list", parameters=[OpenApiParameter("attempt", int)], responses={200: SeriesList}
    )
    def get(self, request: Request, slug: str, number: int) -> Response:
        run = find_run(slug, number)
        attempt = _attempt(run, request)
        infos = [{**info._asdict(), "kind": run.series_kind(info.metric)} for info in Joined(attempt).metrics()]
        return Response({"attempt": attempt.number, "series": infos})


class OneSeries(APIView):
    """The points of one metric, whole or thinned, as JSON, CSV or an Arrow IPC stream; of a chain each step once."""

    @extend_schema(
        operation_id="series_read",
        parameters=[
            OpenApiParameter("metric", str, required=True),
            OpenApiParameter("rank", int, description="Only this rank."),
            OpenApiParameter("points", int, description="Maximum number of points per rank; thinned by MinMaxLTTB."),
            OpenApiParameter("from", int, description="First step."),
            OpenApiParameter("to", int, description="Last step."),
            OpenApiParameter("attempt", int),
            OpenApiParameter("as", str, enum=["json", "csv", "arrow"]),
        ],
        responses={
            200: OneSeriesAnswer,
            (200, "text/csv"): OpenApiTypes.STR,
            (200, ARROW): OpenApiTypes.BINARY,
            400: Errors,
            404: Errors,
        },
    )
    def get(self, request: Request, slug: str, number: int) -> Response | StreamingHttpResponse:
        run = find_run(slug, number)
        attempt = _attempt(run, request)
        metric, form = request.GET.get("metric", ""), request.GET.get("as", "json")
        if form not in ("json", "csv", "arrow"):
            raise Problem(f"unknown form {form[:40]!r}", field="as", value=form, remedy="use json, csv or arrow")
        joined = Joined(attempt)
        if not joined.has(metric):
            shown = ", ".join(sorted(joined.names())[:20]) or "none yet"
            raise Problem(f"run {number} has no series {metric[:80]!r}", field="metric", value=metric, remedy=shown)
        points, rank = whole_number(request, "points", at_least=3), whole_number(request, "rank", at_least=0)
        series = joined.read_many(
            [metric],
            rank=rank,
            first_step=whole_number(request, "from"),
            last_step=whole_number(request, "to"),
        )
        by_rank = {key[2]: columns for key, columns in series.items()}
        if form == "arrow":
            return _arrow(by_rank, points, f"{slug}-run-{number}.arrows", run.series_kind(metric))
        if form == "csv":
            return _csv(by_rank, points, f"{slug}-run-{number}.csv", run.series_kind(metric))
        return Response(series_json(metric, attempt, by_rank, min(points or MAX_POINTS, MAX_POINTS)))


def series_json(metric: str, attempt: Attempt, by_rank: dict[int, Columns], points: int) -> dict[str, Any]:
    ranks = []
    for rank, columns in sorted(by_rank.items()):
        thinned = columns.thinned(points)
        values = [value if math.isfinite(value) else _word(value) for value in thinned.values.tolist()]
        steps, times = thinned.steps.tolist(), thinned.times.tolist()
        ranks.append({"rank": rank, "total": len(columns), "steps": steps, "times": times, "values": values})
    is_thinned = any(len(columns) > points for columns in by_rank.values())
    kind = attempt.run.series_kind(metric)
    return {"metric": metric, "attempt": attempt.number, "kind": kind, "is_thinned": is_thinned, "ranks": ranks}


def _word(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _csv(by_rank: dict[int, Columns], points: int | None, name: str, kind: str) -> StreamingHttpResponse:
    """Stream rows of rank, step, time and value; those of a file also state the kind of the values."""
    own_kind = [kind] if kind else []

    def lines() -> Iterator[str]:
        yield ",".join(["rank", "step", "time", "value", *(["kind"] if kind else [])]) + "\r\n"
        for rank, columns in sorted(by_rank.items()):
            thinned = columns if points is None else columns.thinned(points)
            for first in range(0, len(thinned), _ROWS):
                part = slice(first, first + _ROWS)
                buffer = io.StringIO()
                csv.writer(buffer).writerows(
                    zip(
                        [rank] * _ROWS,
                        thinned.steps[part].tolist(),
                        thinned.times[part].tolist(),
                        thinned.values[part].tolist(),
                        *([text] * _ROWS for text in own_kind),
                        strict=False,
                    )
                )
                yield buffer.getvalue()

    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return StreamingHttpResponse(lines(), content_type="text/csv; charset=utf-8", headers=headers)


def _arrow(by_rank: dict[int, Columns], points: int | None, name: str, kind: str) -> StreamingHttpResponse:
    """Stream record batches with the columns rank, step, time (Unix seconds) and value; the schema has the kind."""
    types = {"rank": nanoarrow.int32(), "step": nanoarrow.int64()}
    types |= {"time": nanoarrow.float64(), "value": nanoarrow.float64()}
    schema = nanoarrow.c_schema(nanoarrow.struct(types))
    if kind:
        schema = schema.modify(metadata={"kind": kind})

    def batches() -> Iterator[bytes]:
        buffer = io.BytesIO()
        with ipc.StreamWriter.from_writable(buffer) as writer:
            # An empty batch carries the schema where there are no points.
            for rank, columns in sorted(by_rank.items()) or [(0, Columns.joined([]))]:
                thinned = columns if points is None else columns.thinned(points)
                for first in range(0, max(len(thinned), 1), _BATCH_ROWS):
                    part = thinned.take(slice(first, first + _BATCH_ROWS))
                    numbers = (np.full(len(part), rank, np.int32), part.steps, part.times, part.values)
                    # An empty array of numpy is not taken.
                    children = [
                        nanoarrow.c_array(column if len(part) else [], None if len(part) else own_type)
                        for column, own_type in zip(numbers, types.values(), strict=True)
                    ]
                    writer.write_array(nanoarrow.c_array_from_buffers(schema, len(part), [None], children=children))
                    yield buffer.getvalue()
                    buffer.seek(0)
                    buffer.truncate()
        yield buffer.getvalue()

    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return StreamingHttpResponse(batches(), content_type=ARROW, headers=headers)


class Reported(APIView):
    """Parameters, tags and artifacts of a run."""

    @extend_schema(operation_id="reported_read", responses={200: ReportedAnswer})
    def get(self, _request: Request, slug: str, number: int) -> Response:
        run = find_run(slug, number)
        tracked = getattr(run, "tracked", None)
        artifacts = Artifact.objects.filter(tracked__run=run).values("path", "size", "sha256", "updated_at")
        return Response(
            {
                "uuid": tracked.uuid if tracked else None,
                "parameters": dict(tracked.parameters.values_list("key", "value")) if tracked else {},
                "tags": dict(tracked.tags.values_list("key", "value")) if tracked else {},
                "sources": run.summary.get("sources") or {},
                "artifacts": list(artifacts),
            }
        )


class OneArtifact(APIView):
    """The bytes of an artifact."""

    @extend_schema(
        operation_id="artifacts_read", responses={(200, "application/octet-stream"): OpenApiTypes.BINARY, 404: Errors}
    )
    def get(self, _request: Request, slug: str, number: int, path: str) -> FileResponse:
        artifacts = Artifact.objects.filter(tracked__run__experiment__slug=slug, tracked__run__number=number)
        stored = get_object_or_404(artifacts, path=path)
        try:
            file = object_open(stored.sha256)
        except FileNotFoundError as error:
            remedy = "log the file again, or restore the artifacts of the server"
            raise Problem("the bytes of this file are missing", field="path", value=path, remedy=remedy) from error
        return FileResponse(
            file, as_attachment=True, filename=path.rpartition("/")[2], content_type="application/octet-stream"
        )
