"""Watches: list, and import of histories."""

from __future__ import annotations

from typing import Any, cast

from django.shortcuts import get_object_or_404
from drf_spectacular.utils import extend_schema
from rest_framework import permissions
from rest_framework import serializers as drf
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from parlab.lab.models import Experiment
from parlab.watch import services
from parlab.watch.models import Watch
from parlab.watch.selectors import counted_watches

from .errors import Problem, TooLarge
from .permissions import MayAddRuns
from .serializers import Errors

MAX_BYTES = 8 * 2**20


class WatchItem(drf.Serializer[Any]):
    """A watch with its number of results and open alerts."""

    id = drf.IntegerField(source="pk")
    name = drf.CharField()
    key = drf.CharField()
    results = drf.IntegerField(source="count")
    open_alerts = drf.IntegerField(source="open")
    url = drf.CharField(source="get_absolute_url")


class HistoryRequest(drf.Serializer[Any]):
    """A history as a file, or an experiment."""

    file = drf.FileField(required=False, help_text="CSV, apache-otava's or Perfherder's JSON; at most 8 MiB.")
    experiment = drf.SlugField(required=False, help_text="Slug: its finished runs in the order in which they ended.")


class HistoryAnswer(drf.Serializer[Any]):
    """Outcome of an import."""

    results = drf.IntegerField(source="rows")
    new_alerts = drf.IntegerField(source="alerts")
    problems = drf.ListField(child=drf.CharField(), help_text="Rows that could not be read.")


class Watches(APIView):
    """All watches."""

    permission_classes = [permissions.IsAuthenticated]

    @extend_schema(responses={200: WatchItem(many=True)})
    def get(self, _request: Request) -> Response:
        return Response(WatchItem(counted_watches(), many=True).data)


class History(APIView):
    """POST imports a history into a watch; results that it already has are replaced."""

    permission_classes = [permissions.IsAuthenticated, MayAddRuns]

    @extend_schema(request=HistoryRequest, responses={200: HistoryAnswer, 400: Errors})
    def post(self, request: Request, pk: int) -> Response:
        watch = get_object_or_404(Watch.objects.select_related("config"), pk=pk)
        fields = HistoryRequest(data=request.data)
        fields.is_valid(raise_exception=True)
        file, slug = fields.validated_data.get("file"), fields.validated_data.get("experiment")
        if (file is None) == (slug is None):
            raise Problem("send either a file or an experiment", field="file", value="", remedy="send one of them")
        try:
            outcome = self._imported(watch, file, slug)
        except ValueError as error:
            message, _, remedy = str(error).partition("; ")
            raise Problem(message, field="file" if file else "experiment", value=slug or "", remedy=remedy) from error
        return Response(HistoryAnswer(outcome).data)

    def _imported(self, watch: Watch, file: Any, slug: str | None) -> services.Imported:
        if file is None:
            experiment = get_object_or_404(Experiment, slug=cast(str, slug))
            return services.experiment_import(watch=watch, experiment=experiment)
        if file.size > MAX_BYTES:
            remedy = "split it into files of at most 8 MiB"
            raise TooLarge(f"the history has {file.size} bytes", field="file", value=str(file.name), remedy=remedy)
        return services.history_import(watch=watch, text=file.read().decode("utf-8", "replace"))
