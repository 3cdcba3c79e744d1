"""Watches: list, create, act, import of histories; their alerts and bisections."""

from __future__ import annotations

from typing import Any, cast

from django.contrib.auth.models import User
from django.shortcuts import get_object_or_404
from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import permissions, status
from rest_framework import serializers as drf
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from parlab.api.authentication import require_scope
from parlab.api.errors import Problem, TooLarge, refused, stated_experiment
from parlab.api.permissions import MayAddRuns, user_with
from parlab.api.serializers import Errors
from parlab.lab.models import Config
from parlab.lab.services.access.rights import require_change
from parlab.watch import bisecting, services
from parlab.watch.detecting import sentence_of
from parlab.watch.models import Alert, Bisect, Watch
from parlab.watch.selectors import counted_watches

MAX_BYTES = 8 * 2**20
MAX_ALERTS = 200


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


class WatchRequest(drf.Serializer[Any]):
    """A watch to create, of a configuration or of a key."""

    name = drf.CharField(max_length=120)
    experiment = drf.SlugField(required=False, help_text="Slug, of the configuration to watch.")
    version = drf.IntegerField(required=False, help_text="Version of the configuration; by default the newest.")
    key = drf.CharField(required=False, default="", max_length=200)
    schedule = drf.ChoiceField(
        Watch.Schedule.choices, required=False, default="", allow_blank=True, help_text="How often it runs by itself."
    )
    first_at = drf.DateTimeField(
        required=False, allow_null=True, default=None, help_text="First time of the schedule; by default 2:00 UTC."
    )
    repository = drf.CharField(required=False, default="", max_length=500)
    branch = drf.CharField(required=False, default="", max_length=200)
    on_node_change = drf.BooleanField(default=False)
    repeats = drf.IntegerField(default=1)
    max_extra = drf.IntegerField(default=6)


class WatchAction(drf.Serializer[Any]):
    action = drf.ChoiceField(["pause", "resume", "refresh"])


class OrderItem(drf.Serializer[Any]):
    """Runs that a watch has ordered."""

    id = drf.IntegerField(source="pk")
    runs = drf.IntegerField(source="count", help_text="Runs of each point.")
    commit = drf.CharField()


class AlertItem(drf.ModelSerializer[Alert]):
    """A change with one cause, and what people answered."""

    text = drf.SerializerMethodField()
    url = drf.CharField(source="get_absolute_url")

    class Meta:
        model = Alert
        fields = ["id", "text", "kind", "node", "is_worse", "parts", "state", "reason", "cause", "created_at", "url"]

    @extend_schema_field(drf.CharField())
    def get_text(self, alert: Alert) -> str:
        return sentence_of(alert)


class AnswerRequest(drf.Serializer[Any]):
    """A judgement on an alert."""

    answer = drf.ChoiceField(list(services.ANSWERS))
    reason = drf.CharField(required=False, default="", max_length=500)


class BisectRequest(drf.Serializer[Any]):
    """An action on the search for the commit of a change."""

    action = drf.ChoiceField(["start", "pause", "resume"])
    good = drf.CharField(required=False, default="", max_length=64, help_text="By default the last good commit.")
    bad = drf.CharField(required=False, default="", max_length=64)


class BisectItem(drf.ModelSerializer[Bisect]):
    class Meta:
        model = Bisect
        fields = ["id", "good", "bad", "culprit", "state", "reason", "created_at", "ended_at"]


class Watches(APIView):
    """All watches; POST creates one, with scope launch too if the watch is to start runs by itself."""

    permission_classes = [permissions.IsAuthenticated]

    @extend_schema(responses={200: WatchItem(many=True)})
    def get(self, _request: Request) -> Response:
        return Response(WatchItem(counted_watches(), many=True).data)

    @extend_schema(operation_id="watches_create", request=WatchRequest, responses={201: WatchItem, 400: Errors})
    def post(self, request: Request) -> Response:
        user = user_with("watch.add_watch", request)
        asked = WatchRequest(data=request.data)
        asked.is_valid(raise_exception=True)
        options = dict(asked.validated_data)
        if any(options[name] for name in _OCCASIONS):
            require_scope(request.auth, "launch")
        config = _config(options.pop("experiment", None), options.pop("version", None))
        with refused("name", options["name"]):
            watch = services.watch_create(user=user, config=config, **options)
        services.watch_refresh(watch=watch)
        return Response(_item(watch.pk), status=status.HTTP_201_CREATED)


# Of a watch that starts runs by itself.
_OCCASIONS = ("schedule", "repository", "on_node_change")


def _config(slug: str | None, version: int | None) -> Config | None:
    if slug is None:
        return None
    configs = stated_experiment(slug).configs.order_by("-version")
    config = (configs if version is None else configs.filter(version=version)).first()
    if config is None:
        remedy = f"use a version of GET /api/experiments/{slug}/configurations/"
        raise Problem(f"{slug} has no such configuration", field="version", value=version, remedy=remedy)
    return config


def _item(pk: int) -> Any:
    return WatchItem(counted_watches().get(pk=pk)).data


class OneWatch(APIView):
    """POST {"action": "pause"}, "resume" or "refresh"; DELETE deletes the watch, its runs remain."""

    permission_classes = [permissions.IsAuthenticated]

    @extend_schema(operation_id="watches_act", request=WatchAction, responses={200: WatchItem, 400: Errors})
    def post(self, request: Request, pk: int) -> Response:
        user_with("watch.change_watch", request)
        watch = _watch(pk)
        asked = WatchAction(data=request.data)
        asked.is_valid(raise_exception=True)
        action = asked.validated_data["action"]
        if action == "resume" and any(getattr(watch, name) for name in _OCCASIONS):
            require_scope(request.auth, "launch")
        if action in ("pause", "resume"):
            Watch.objects.filter(pk=pk).update(is_enabled=action == "resume")
        else:
            services.watch_refresh(watch=watch)
        return Response(_item(pk))

    @extend_schema(operation_id="watches_delete", responses={204: None})
    def delete(self, request: Request, pk: int) -> Response:
        user, watch = user_with("watch.change_watch", request), _watch(pk)
        require_change(user, watch)
        services.watch_delete(watch=watch)
        return Response(status=status.HTTP_204_NO_CONTENT)


class WatchRun(APIView):
    """Order runs of a watch now."""

    token_scope = "launch"
    permission_classes = [permissions.IsAuthenticated]

    @extend_schema(operation_id="watches_run", request=None, responses={202: OrderItem, 400: Errors})
    def post(self, request: Request, pk: int) -> Response:
        user = user_with("watch.change_watch", request)
        with refused("id", pk):
            order = services.watch_run(watch=_watch(pk), user=user)
        return Response(OrderItem(order).data, status=status.HTTP_202_ACCEPTED)


def _watch(pk: int) -> Watch:
    return get_object_or_404(Watch.objects.select_related("config"), pk=pk)


class Alerts(APIView):
    """The alerts of a watch, newest first."""

    permission_classes = [permissions.IsAuthenticated]

    @extend_schema(operation_id="alerts_list", responses={200: AlertItem(many=True)})
    def get(self, _request: Request, pk: int) -> Response:
        rows = _watch(pk).alerts.select_related("watch__config", "first_bad", "last_good")[:MAX_ALERTS]
        return Response(AlertItem(rows, many=True).data)


class OneAlert(APIView):
    """POST answers an alert."""

    permission_classes = [permissions.IsAuthenticated]

    @extend_schema(operation_id="alerts_answer", request=AnswerRequest, responses={200: AlertItem, 400: Errors})
    def post(self, request: Request, pk: int, number: int) -> Response:
        user = user_with("watch.change_alert", request)
        alert = _alert(pk, number)
        asked = AnswerRequest(data=request.data)
        asked.is_valid(raise_exception=True)
        with refused("reason", asked.validated_data["reason"]):
            alert = services.alert_answer(alert=alert, user=user, **asked.validated_data)
        return Response(AlertItem(alert).data)


class AlertBisect(APIView):
    """POST starts, pauses or resumes the search for the commit of a change."""

    token_scope = "launch"
    permission_classes = [permissions.IsAuthenticated, MayAddRuns]

    @extend_schema(operation_id="alerts_bisect", request=BisectRequest, responses={200: BisectItem, 400: Errors})
    def post(self, request: Request, pk: int, number: int) -> Response:
        alert = _alert(pk, number)
        asked = BisectRequest(data=request.data)
        asked.is_valid(raise_exception=True)
        action, good, bad = (asked.validated_data[name] for name in ("action", "good", "bad"))
        search = alert.bisects.order_by("-pk").first()
        if action == "start":
            with refused("good", good):
                search = bisecting.bisect_start(alert=alert, user=cast(User, request.user), good=good, bad=bad)
        elif search is None:
            raise Problem("this alert has no bisection", field="action", value=action, remedy="start one")
        else:
            state = Bisect.State.PAUSED if action == "pause" else Bisect.State.RUNNING
            bisecting.bisect_switch(bisect=search, state=state)
            search.refresh_from_db()
        return Response(BisectItem(search).data)


def _alert(pk: int, number: int) -> Alert:
    related = ("watch__config__experiment", "first_bad__run__experiment", "last_good__run__experiment")
    return get_object_or_404(Alert.objects.select_related(*related), pk=number, watch=pk)


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
            experiment = stated_experiment(cast(str, slug))
            return services.experiment_import(watch=watch, experiment=experiment)
        if file.size > MAX_BYTES:
            remedy = "split it into files of at most 8 MiB"
            raise TooLarge(f"the history has {file.size} bytes", field="file", value=str(file.name), remedy=remedy)
        return services.history_import(watch=watch, text=file.read().decode("utf-8", "replace"))
