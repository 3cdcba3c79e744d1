"""Runs of all experiments by a filter, with parameters and last metrics; series of many runs in one request."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import nanoarrow
import numpy as np
from django.db.models import F, QuerySet
from django.http import HttpResponse
from django.shortcuts import get_object_or_404
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from nanoarrow import ipc
from rest_framework import generics
from rest_framework import serializers as drf
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from parlab import whole_numbers
from parlab.api import serializers
from parlab.api.errors import Problem, refused
from parlab.lab.models import Attempt, LatestMetric, Run, RunParameter
from parlab.series import store
from parlab.series.columns import Columns
from parlab.tracking.run_filters import runs_filtered

from .experiments import Pages, annotated_runs
from .numbers import ARROW, KIND, series_json, whole_number

MAX_SERIES = 1_000
DEFAULT_POINTS = 1_000
_RUN_ID = "EXPERIMENT:NUMBER, or the ID of a run that a script has reported"
_Series = dict[int, dict[str, dict[int, Columns]]]
"""Points by attempt, metric and rank."""


class FoundRun(serializers.RunItem):
    """A run with its experiment, parameters and the last values of its metrics."""

    experiment = drf.CharField(source="experiment.slug")
    run_id = drf.SerializerMethodField(help_text="The ID that scripts use; null for runs that parlab launched.")
    parameters = drf.SerializerMethodField()
    metrics = drf.SerializerMethodField(help_text="Last value of each metric; null: not a number.")

    class Meta(serializers.RunItem.Meta):
        fields = ["experiment", "run_id", *serializers.RunItem.Meta.fields, "parameters", "metrics"]

    def get_run_id(self, run: Run) -> str | None:
        return run.tracked.uuid if hasattr(run, "tracked") else None

    def get_parameters(self, run: Run) -> dict[str, str]:
        return dict(self.context.get("parameters", {}).get(run.pk, {}))

    def get_metrics(self, run: Run) -> dict[str, float | None]:
        return dict(self.context.get("metrics", {}).get(run.pk, {}))


def _columns(runs: Sequence[Run]) -> dict[str, Any]:
    """Return parameters and last metrics of runs, each {run id: {name: value}}, with a query each."""
    ids = [run.pk for run in runs]
    tables: dict[str, dict[int, dict[str, Any]]] = {"parameters": {}, "metrics": {}}
    for name, model in (("parameters", RunParameter), ("metrics", LatestMetric)):
        rows: Any = model._default_manager.filter(tracked__run__in=ids)
        for run_id, key, value in rows.values_list("tracked__run", "key", "value"):
            tables[name].setdefault(run_id, {})[key] = value
    return tables


class FoundRuns(generics.ListAPIView[Run]):
    """Runs of all experiments, newest first, by a filter like `loss < 2 and params.lr = 0.1`."""

    serializer_class = FoundRun
    pagination_class = Pages
    queryset = Run.objects.none()

    def get_queryset(self) -> QuerySet[Run]:
        runs = annotated_runs(Run.objects.all()).defer("resolved", "summary", "launch", "config__data")
        if slug := self.request.GET.get("experiment", ""):
            runs = runs.filter(experiment__slug=slug)
        text = self.request.GET.get("filter", "")
        with refused("filter", text):
            return runs_filtered(runs.select_related("tracked").order_by("-pk"), text)

    @extend_schema(
        operation_id="runs_search",
        parameters=[
            OpenApiParameter("filter", str, description="MLflow's filter language; a name alone is a metric."),
            OpenApiParameter("experiment", str, description="Slug of one experiment."),
        ],
    )
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        page: Any = self.paginate_queryset(self.get_queryset())
        answer = FoundRun(page, many=True, context={**self.get_serializer_context(), **_columns(page)})
        return self.get_paginated_response(answer.data)


class FoundOne(APIView):
    """One run by the ID that its script knows."""

    @extend_schema(operation_id="runs_read_by_id", responses={200: FoundRun})
    def get(self, request: Request, run_id: str) -> Response:
        run = get_object_or_404(annotated_runs(Run.objects.select_related("tracked")), tracked__uuid=run_id)
        return Response(FoundRun(run, context={"request": request, **_columns([run])}).data)


class ManySeriesItem(drf.Serializer[Any]):
    """The points of one metric of one run."""

    run = drf.CharField(help_text="As in the request.")
    metric = drf.CharField()
    attempt = drf.IntegerField()
    kind = drf.CharField(help_text=KIND)
    is_thinned = drf.BooleanField()
    ranks = drf.ListField(child=drf.DictField())


class ManySeriesAnswer(drf.Serializer[Any]):
    series = ManySeriesItem(many=True)


class ManySeries(APIView):
    """Series of many runs, as JSON or as one Arrow IPC stream."""

    @extend_schema(
        operation_id="series_read_many",
        parameters=[
            OpenApiParameter("run", str, many=True, required=True, description=_RUN_ID),
            OpenApiParameter("metric", str, many=True, required=True),
            OpenApiParameter("rank", int, description="Only this rank."),
            OpenApiParameter("points", int, description=f"Per series and rank, {DEFAULT_POINTS} by default."),
            OpenApiParameter("as", str, enum=["json", "arrow"]),
        ],
        responses={200: ManySeriesAnswer, (200, ARROW): OpenApiTypes.BINARY, 400: serializers.Errors},
    )
    def get(self, request: Request) -> Response | HttpResponse:
        names, metrics = request.GET.getlist("run"), request.GET.getlist("metric")
        if not names or not metrics or len(names) * len(metrics) > MAX_SERIES:
            remedy = f"name 1 to {MAX_SERIES} series: ?run=bert:1&run=bert:2&metric=loss"
            raise Problem(f"{len(names)} runs x {len(metrics)} metrics", field="run", value=None, remedy=remedy)
        points = whole_number(request, "points", DEFAULT_POINTS, at_least=3) or DEFAULT_POINTS
        attempts = {name: attempt for name in names if (attempt := _attempt(name)) is not None}
        if missing := [name for name in names if name not in attempts]:
            raise Problem(f"unknown run {missing[0][:80]!r}", field="run", value=missing[0], remedy=f"use {_RUN_ID}")
        ids = [attempt.pk for attempt in attempts.values()]
        read = store.read_many(ids, metrics, rank=whole_number(request, "rank", at_least=0))
        series: _Series = {}
        for (attempt_id, metric, rank), columns in sorted(read.items(), key=lambda item: item[0]):
            series.setdefault(attempt_id, {}).setdefault(metric, {})[rank] = columns
        if request.GET.get("as") == "arrow":
            return HttpResponse(_arrow(attempts, series, points), content_type=ARROW)
        return Response({"series": list(_json(attempts, series, points))})


def _attempt(name: str) -> Attempt | None:
    """Return the current attempt of a run by its name."""
    slug, colon, number = name.rpartition(":")
    attempts = Attempt.objects.select_related("run").filter(number=F("run__attempt_number"))
    attempts = attempts.filter(run__in=Run.objects.values("pk"))
    if colon and (counted := whole_numbers.whole_number(number, 9)) is not None:
        return attempts.filter(run__experiment__slug=slug, run__number=counted).first()
    return attempts.filter(run__tracked__uuid=name).first()


def _named(attempts: Mapping[str, Attempt], series: _Series) -> Iterator[tuple[str, Attempt, str, dict[int, Columns]]]:
    """Return the name of the run, its attempt, the metric and its ranks, in the order of the answer."""
    for name, attempt in attempts.items():
        for metric, by_rank in series.get(attempt.pk, {}).items():
            yield name, attempt, metric, by_rank


def _json(attempts: Mapping[str, Attempt], series: _Series, points: int) -> Iterator[dict[str, Any]]:
    for name, attempt, metric, by_rank in _named(attempts, series):
        yield {"run": name, **series_json(metric, attempt, by_rank, points)}


def _arrow(attempts: Mapping[str, Attempt], series: _Series, points: int) -> bytes:
    """Return record batches with the columns run, metric, kind, rank, step, time (Unix seconds) and value."""
    types = dict.fromkeys(("run", "metric", "kind"), nanoarrow.string()) | {"rank": nanoarrow.int32()}
    types |= {"step": nanoarrow.int64(), "time": nanoarrow.float64(), "value": nanoarrow.float64()}
    schema = nanoarrow.struct(types)
    buffer = io.BytesIO()
    with ipc.StreamWriter.from_writable(buffer) as writer:
        for name, attempt, metric, by_rank in _named(attempts, series):
            texts = (name, metric, attempt.run.series_kind(metric))
            for rank, columns in by_rank.items():
                thinned = columns.thinned(points)
                count = len(thinned)
                numbers = (np.full(count, rank, np.int32), thinned.steps, thinned.times, thinned.values)
                children = [
                    *(nanoarrow.c_array([text] * count, nanoarrow.string()) for text in texts),
                    *(nanoarrow.c_array(column) for column in numbers),
                ]
                writer.write_array(nanoarrow.c_array_from_buffers(schema, count, [None], children=children))
    return buffer.getvalue()
