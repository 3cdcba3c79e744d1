"""What changes experiments: create, configure, launch, cancel, relaunch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from django.contrib.auth.models import User
from django.shortcuts import get_object_or_404
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import permissions, status
from rest_framework import serializers as drf
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from parlab.api.errors import Changed, Problem, Problems
from parlab.api.serializers import Errors
from parlab.fleet import services as fleet
from parlab.lab.models import Config, Experiment
from parlab.lab.services.configs import Superseded, config_check, config_save
from parlab.lab.services.experiments import experiment_create
from parlab.whole_numbers import whole_number
from runners.config import ConfigError, digest, expand

from . import experiments
from .numbers import find_run

_LISTED = 200


class ConfigRequest(drf.Serializer[Any]):
    """A configuration: sections with fields, and axes that vary them."""

    data = drf.DictField(help_text="Section -> field -> value; omitted fields have their defaults.")  # type: ignore[assignment]
    sweep = drf.DictField(required=False, help_text="Dotted field -> list of values.")
    note = drf.CharField(required=False, allow_blank=True, max_length=300)
    based_on = drf.CharField(
        required=False,
        allow_blank=True,
        max_length=64,
        help_text="Digest of the newest version that you have seen, empty if there was none; or the header If-Match.",
    )
    dry_run = drf.BooleanField(default=False, help_text="Only validate; nothing is saved.")


class ConfigItem(drf.Serializer[Any]):
    """One version of an experiment's configuration."""

    version = drf.IntegerField(allow_null=True, help_text="Null for a dry run.")
    digest = drf.CharField(help_text="Of data and sweep: a launch and the next save name it.")
    data = drf.DictField()  # type: ignore[assignment]  # the field has the name of a property
    sweep = drf.DictField()
    note = drf.CharField()
    points = drf.IntegerField(help_text="Number of points of the sweep.")
    invalid_points = drf.IntegerField(help_text="Points that cannot run, and are left out of a launch.")


class ExperimentRequest(drf.Serializer[Any]):
    name = drf.CharField(max_length=120)
    question = drf.CharField(required=False, allow_blank=True, default="", max_length=2_000)


class CreatedExperiment(drf.Serializer[Any]):
    """A new experiment."""

    slug = drf.CharField()
    name = drf.CharField()
    url = drf.CharField(help_text="Address of its page.")


class LaunchAnswer(drf.Serializer[Any]):
    """The runs that a launch created."""

    created = drf.ListField(child=drf.IntegerField(), help_text="Numbers of the new runs.")
    existing = drf.IntegerField(help_text="Points that already have a run.")
    invalid = drf.IntegerField(help_text="Points that cannot run.")
    needs_approval = drf.BooleanField(help_text="They wait for a maintainer: they are beyond the project's budget.")


class StateAnswer(drf.Serializer[Any]):
    number = drf.IntegerField()
    state = drf.CharField()
    attempt_number = drf.IntegerField()


def may(codename: str) -> type[permissions.BasePermission]:
    """Return the permission class: everyone reads, changes require a permission of the app lab."""

    class May(permissions.BasePermission):
        message = f"Your account has no permission for this (lab.{codename})."

        def has_permission(self, request: Request, view: APIView) -> bool:
            return request.method in permissions.SAFE_METHODS or request.user.has_perm(f"lab.{codename}")

    return May


class Configs(APIView):
    """Versions of an experiment's configuration; POST validates and saves one."""

    permission_classes = [permissions.IsAuthenticated, may("add_config")]

    @extend_schema(operation_id="configurations_list", responses={200: ConfigItem(many=True)})
    def get(self, _request: Request, slug: str) -> Response:
        experiment = get_object_or_404(Experiment, slug=slug)
        return Response([_item(config) for config in experiment.configs.order_by("-version")[:_LISTED]])

    @extend_schema(
        operation_id="configurations_save",
        request=ConfigRequest,
        responses={201: ConfigItem, 200: ConfigItem, 400: Errors, 412: Errors},
        description="201: saved. 200: a dry run; the response has the completed configuration. 412: somebody has saved"
        " another version since the one that `based_on` names.",
    )
    def post(self, request: Request, slug: str) -> Response:
        experiment = get_object_or_404(Experiment, slug=slug)
        body: Any = request.data
        if not isinstance(body, Mapping) or not isinstance(body.get("data"), Mapping):
            remedy = 'send {"data": {"train": {...}}, "sweep": {...}}'
            raise Problem("the body has no object `data`", field="data", value=None, remedy=remedy)
        asked = ConfigRequest(data=body)
        asked.is_valid(raise_exception=True)
        options = asked.validated_data
        data, sweep = options["data"], options.get("sweep") or {}
        try:
            if options["dry_run"]:
                data, sweep = config_check(data=data, sweep=sweep)
                return Response(_described(None, data, sweep, ""))
            config = config_save(
                experiment=experiment,
                data=data,
                sweep=sweep,
                note=options.get("note"),
                user=cast(User, request.user),
                based_on=_seen(request, options.get("based_on", "")),
            )
        except Superseded as error:
            raise _changed(error, "based_on", options.get("based_on")) from error
        except ConfigError as error:
            raise _problems(error) from error
        return Response(_item(config), status=status.HTTP_201_CREATED)


class Launch(APIView):
    """Launch every point of a configuration that has no run yet; repeating it starts nothing twice."""

    token_scope = "launch"
    permission_classes = [permissions.IsAuthenticated, may("add_run")]

    @extend_schema(
        operation_id="experiments_launch",
        request=None,
        parameters=[
            OpenApiParameter("version", int, description="By default the newest version."),
            OpenApiParameter("digest", str, description="Of the configuration to launch; or the header If-Match."),
        ],
        responses={200: LaunchAnswer, 201: LaunchAnswer, 400: Errors, 412: Errors},
        description="412: the version has another digest: somebody has edited it since.",
    )
    def post(self, request: Request, slug: str) -> Response:
        configs = Config.objects.select_related("experiment").filter(
            experiment=get_object_or_404(Experiment, slug=slug)
        )
        version = request.GET.get("version", "")
        if version and whole_number(version, 9) is None:
            raise Problem(
                f"version {version!r} is not a number", field="version", value=version, remedy="use 1, 2, ..."
            )
        configs = configs.filter(version=int(version)) if version else configs.order_by("-version")
        config = configs.first()
        if config is None:
            remedy = f"save a configuration with POST /api/experiments/{slug}/configurations/"
            raise Problem(f"{slug} has no such configuration", field="version", value=version, remedy=remedy)
        config.digest = _seen(request, request.GET.get("digest", ""))
        try:
            launched = fleet.launch(config=config, user=cast(User, request.user))
        except Superseded as error:
            raise _changed(error, "digest", config.digest) from error
        except ConfigError as error:
            raise _problems(error) from error
        except ValueError as error:
            raise Problem(str(error), field="version", value=version, remedy="see the message") from error
        answer = {
            "created": [run.number for run in launched.created],
            "existing": launched.existing,
            "invalid": len(launched.invalid),
            "needs_approval": launched.approval is not None,
        }
        return Response(answer, status=status.HTTP_201_CREATED if launched.created else status.HTTP_200_OK)


class Cancel(APIView):
    """Cancel a run."""

    token_scope = "launch"
    permission_classes = [permissions.IsAuthenticated, may("change_run")]

    @extend_schema(operation_id="runs_cancel", request=None, responses={200: StateAnswer, 400: Errors})
    def post(self, _request: Request, slug: str, number: int) -> Response:
        run = find_run(slug, number)
        try:
            fleet.cancel(run=run)
        except ValueError as error:
            raise Problem(str(error), field="number", value=number, remedy="see the state of the run") from error
        return _state(slug, number)


class EndChain(APIView):
    """End the chain of a run after its current attempt."""

    token_scope = "launch"
    permission_classes = [permissions.IsAuthenticated, may("change_run")]

    @extend_schema(operation_id="runs_end_chain", request=None, responses={200: StateAnswer, 400: Errors})
    def post(self, _request: Request, slug: str, number: int) -> Response:
        run = find_run(slug, number)
        try:
            fleet.end_chain(run=run)
        except ValueError as error:
            raise Problem(str(error), field="number", value=number, remedy="see the state of the run") from error
        return _state(slug, number)


class Relaunch(APIView):
    """Start the next attempt of a run that has ended."""

    token_scope = "launch"
    permission_classes = [permissions.IsAuthenticated, may("change_run")]

    @extend_schema(operation_id="runs_relaunch", request=None, responses={200: StateAnswer, 400: Errors})
    def post(self, request: Request, slug: str, number: int) -> Response:
        run = find_run(slug, number)
        try:
            fleet.relaunch(run=run, user=cast(User, request.user))
        except ValueError as error:
            raise Problem(str(error), field="number", value=number, remedy="see the state of the run") from error
        return _state(slug, number)


class Experiments(experiments.Experiments):
    """All experiments, newest first; `?q=` filters by words in names and questions. POST creates one."""

    permission_classes = [permissions.IsAuthenticated, may("add_experiment")]

    @extend_schema(
        operation_id="experiments_create", request=ExperimentRequest, responses={201: CreatedExperiment, 400: Errors}
    )
    def post(self, request: Request) -> Response:
        asked = ExperimentRequest(data=request.data)
        asked.is_valid(raise_exception=True)
        name = asked.validated_data["name"]
        try:
            experiment = experiment_create(
                name=name, question=asked.validated_data["question"], owner=cast(User, request.user)
            )
        except ValueError as error:
            raise Problem(f"name {name!r} is taken", field="name", value=name, remedy="choose another name") from error
        answer = {"slug": experiment.slug, "name": experiment.name, "url": experiment.get_absolute_url()}
        return Response(answer, status=status.HTTP_201_CREATED)


def _state(slug: str, number: int) -> Response:
    run = find_run(slug, number)
    return Response({"number": run.number, "state": run.state, "attempt_number": run.attempt_number})


def _seen(request: Request, stated: str) -> str:
    """Return the digest that a request is based on, from its own field or from If-Match."""
    return stated or request.headers.get("If-Match", "").removeprefix("W/").strip('"')


def _changed(error: Superseded, field: str, value: Any) -> Changed:
    remedy = f"read .../configurations/, then send {field}={error.latest.digest} if you want that version"
    return Changed(str(error), field=field, value=value, remedy=remedy)


def _item(config: Config) -> dict[str, Any]:
    return {**_described(config.version, config.data, config.sweep, config.note), "digest": config.digest}


def _described(version: int | None, data: Mapping[str, Any], sweep: Mapping[str, Any], note: str) -> dict[str, Any]:
    points = expand(dict(data), dict(sweep))
    invalid = sum(point.config is None for point in points)
    return {
        "version": version,
        "digest": digest({"data": data, "sweep": sweep}),
        "data": data,
        "sweep": sweep,
        "note": note,
        "points": len(points),
        "invalid_points": invalid,
    }


def _problems(error: ConfigError) -> Problems:
    return Problems(
        [problem._asdict() for problem in error.problems], remedy="see docs/understand/engines.md for all fields"
    )
