"""Studies of the tuner: create, read, pause, resume and cancel."""

from __future__ import annotations

from typing import Any, cast

from django.contrib.auth.models import User
from django.shortcuts import get_object_or_404
from drf_spectacular.utils import extend_schema
from rest_framework import permissions, serializers, status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from parlab.api.errors import Problem
from parlab.api.permissions import MayAddRuns
from parlab.api.serializers import Errors
from parlab.lab.models import Config, Experiment
from parlab.tuner import services
from parlab.tuner.models import Study
from parlab.tuner.results import Result, Tried, result_of, results_of
from runners.config import ConfigError

MAX_STUDIES = 200
ACTIONS = {"pause": services.study_pause, "resume": services.study_resume, "cancel": services.study_cancel}


class ActionRequest(serializers.Serializer[Any]):
    """An action on a study."""

    action = serializers.ChoiceField(["pause", "resume", "cancel"])


class StudyRequest(serializers.Serializer[Any]):
    """A study to create."""

    experiment = serializers.SlugField(help_text="Slug.")
    config = serializers.IntegerField(
        required=False,
        help_text="Version of the configuration whose sweep is searched; by default the newest with a sweep.",
    )
    baseline = serializers.IntegerField(
        required=False, help_text="Version of the configuration to compare the result with."
    )
    strategy = serializers.ChoiceField(Study.Strategy.values, default=Study.Strategy.PLANNED)
    objective = serializers.ChoiceField(Study.Objective.values, default=Study.Objective.THROUGHPUT)
    max_launches = serializers.IntegerField(default=20, min_value=1, max_value=2000)
    hand_tuned = serializers.BooleanField(default=True, help_text="Also tune by hand, for comparison.")


class TrialItem(serializers.Serializer[Any]):
    """One launch of a study."""

    number = serializers.IntegerField(source="trial.number")
    role = serializers.CharField(source="trial.role")
    setting = serializers.CharField(source="trial.key")
    tuning_space = serializers.CharField(source="trial.tuning_space")
    run = serializers.IntegerField(source="run.number")
    state = serializers.CharField(source="run.state")
    expected = serializers.FloatField(source="trial.expected", allow_null=True)
    value = serializers.FloatField(allow_null=True)
    reused = serializers.BooleanField(source="trial.reused")
    why = serializers.CharField(source="trial.why")


class StudyItem(serializers.Serializer[Any]):
    """A study with its results so far."""

    id = serializers.IntegerField()
    experiment = serializers.CharField()
    config = serializers.IntegerField()
    strategy = serializers.CharField()
    objective = serializers.CharField()
    unit = serializers.CharField(help_text="Unit of expected and measured values; larger is better.")
    state = serializers.CharField()
    reason = serializers.CharField()
    tuning_time_s = serializers.FloatField()
    best = TrialItem(allow_null=True)
    trials = TrialItem(many=True)
    url = serializers.CharField()


def _item(result: Result) -> dict[str, Any]:
    study = result.study
    best: Tried | None = result.best
    return StudyItem(
        {
            "id": study.pk,
            "experiment": study.config.experiment.slug,
            "config": study.config.version,
            "strategy": study.strategy,
            "objective": study.objective,
            "unit": result.unit,
            "state": study.state,
            "reason": study.reason,
            "tuning_time_s": result.tuning_time.total_seconds(),
            "best": best,
            "trials": result.tried,
            "url": study.get_absolute_url(),
        }
    ).data


class Studies(APIView):
    """The studies, newest first; POST creates one."""

    token_scope = "launch"
    permission_classes = [permissions.IsAuthenticated, MayAddRuns]

    @extend_schema(responses={200: StudyItem(many=True)})
    def get(self, _request: Request) -> Response:
        studies = Study.objects.select_related("config__experiment", "driver")[:MAX_STUDIES]
        return Response([_item(result) for result in results_of(list(studies))])

    @extend_schema(request=StudyRequest, responses={201: StudyItem, 400: Errors})
    def post(self, request: Request) -> Response:
        study_request = StudyRequest(data=request.data)
        study_request.is_valid(raise_exception=True)
        options = study_request.validated_data
        experiment = Experiment.objects.filter(slug=options["experiment"]).first()
        if experiment is None:
            slug = options["experiment"]
            remedy = "use a slug of /api/experiments/"
            raise Problem(f"unknown experiment {slug!r}", field="experiment", value=slug, remedy=remedy)
        try:
            study = services.study_create(
                config=_config(experiment, "config", options.get("config")),
                baseline=_config(experiment, "baseline", options["baseline"]) if options.get("baseline") else None,
                user=cast(User, request.user),
                strategy=options["strategy"],
                objective=options["objective"],
                max_launches=options["max_launches"],
                hand_tuned=options["hand_tuned"],
            )
        except (ValueError, ConfigError) as error:
            message, _, remedy = str(error).partition("; ")
            raise Problem(message, field="config", value=str(options.get("config")), remedy=remedy) from error
        return Response(_item(result_of(study)), status=status.HTTP_201_CREATED)


class OneStudy(APIView):
    """One study; POST {"action": "pause"}, "resume" or "cancel"."""

    token_scope = "launch"
    permission_classes = [permissions.IsAuthenticated, MayAddRuns]

    @extend_schema(responses={200: StudyItem})
    def get(self, _request: Request, pk: int) -> Response:
        return Response(_item(result_of(_find(pk))))

    @extend_schema(operation_id="studies_act", request=ActionRequest, responses={200: StudyItem, 400: Errors})
    def post(self, request: Request, pk: int) -> Response:
        data: Any = request.data
        study, action = _find(pk), str(data.get("action", "") if isinstance(data, dict) else "")
        if action not in ACTIONS:
            names = ", ".join(ACTIONS)
            raise Problem(f"unknown action {action!r}", field="action", value=action, remedy=f"use one of {names}")
        ACTIONS[action](study=study)
        return Response(_item(result_of(_find(pk))))


def _find(pk: int) -> Study:
    return get_object_or_404(Study.objects.select_related("config__experiment"), pk=pk)


def _config(experiment: Experiment, field: str, version: int | None) -> Config:
    configs = experiment.configs.order_by("-version")
    newest = configs.exclude(sweep={}).first() or configs.first()
    config = newest if version is None else configs.filter(version=version).first()
    if config is None:
        versions = ", ".join(str(existing.version) for existing in configs) or "none yet"
        message = f"{experiment.slug} has no configuration {version or ''}".strip()
        raise Problem(message, field=field, value=str(version), remedy=f"use one of: {versions}")
    return config
