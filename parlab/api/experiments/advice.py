"""Advice for runs: what to change, the predicted gain, and what came of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from django.shortcuts import get_object_or_404
from drf_spectacular.utils import extend_schema
from rest_framework import permissions, status
from rest_framework import serializers as drf
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from parlab.advice.advice import Advice
from parlab.api.errors import refused
from parlab.api.permissions import user_with
from parlab.api.serializers import Errors
from parlab.fleet.trials import advice_launch
from parlab.lab.models import AdviceTrial, Experiment, Run
from parlab.lab.selectors.analysis.advice import advice_records, all_trials, run_advice, tried_advice
from parlab.lab.selectors.analysis.sweep_advice import edges_of, fastest_run, without_measured

from .numbers import find_run

_LISTED = 500


class AdviceItem(drf.Serializer[Any]):
    """A change with its predicted gain; gains are shares of the step time (0.1: the step takes 10 % less)."""

    title = drf.CharField()
    kind = drf.CharField()
    gain = drf.FloatField()
    low = drf.FloatField(help_text="80 % of such predictions stay within low and high.")
    high = drf.FloatField()
    predicted_step_time_s = drf.FloatField(
        allow_null=True, help_text="Of an engine without steps: of a GiB, a search or a sample (docs/use/time.md)."
    )
    part = drf.CharField(help_text="Part of the step that it shortens.")
    cost = drf.CharField()
    risk = drf.CharField()
    rule = drf.CharField()
    evidence = drf.CharField()
    settings = drf.DictField(help_text="Fields of the configuration with new values; empty: not a setting.")
    can_try = drf.BooleanField(help_text="Whether POST can launch it.")


class AdviceTrialItem(drf.Serializer[Any]):
    """Advice that was tried."""

    title = drf.CharField()
    kind = drf.CharField()
    experiment = drf.CharField()
    run = drf.IntegerField(help_text="Number of the run that it was given for.")
    changed_experiment = drf.CharField()
    changed_run = drf.IntegerField()
    state = drf.CharField(help_text="State of the changed run.")
    gain = drf.FloatField()
    low = drf.FloatField()
    high = drf.FloatField()
    realised = drf.FloatField(allow_null=True, help_text="Null until both runs have a step time.")


class RunAdviceAnswer(drf.Serializer[Any]):
    """The advice for a run, best first."""

    run = drf.IntegerField(allow_null=True)
    reason = drf.CharField(allow_blank=True, help_text="Why settings were not varied; empty if they were.")
    advice = AdviceItem(many=True)
    trials = AdviceTrialItem(many=True)


class EdgeItem(drf.Serializer[Any]):
    """An axis of the sweep whose best value is its first or last."""

    axis = drf.CharField(help_text="Field of the configuration.")
    value = drf.FloatField()
    is_largest = drf.BooleanField()


class ExperimentAdviceAnswer(RunAdviceAnswer):
    """Advice for the fastest run of an experiment."""

    edges = EdgeItem(many=True)


class RecordItem(drf.Serializer[Any]):
    """How good the tried advice of a kind was; `all`: of every kind."""

    kind = drf.CharField()
    tried = drf.IntegerField()
    clear = drf.IntegerField(help_text="Trials with a gain or loss above noise.")
    right = drf.IntegerField(help_text="Clear trials whose sign was predicted.")
    mean_error = drf.FloatField(help_text="Mean of |predicted - realised|, in shares of the step time.")


class ScoreAnswer(drf.Serializer[Any]):
    """The record of all tried advice."""

    records = RecordItem(many=True)
    trials = AdviceTrialItem(many=True)


class TryRequest(drf.Serializer[Any]):
    """Changes to launch; several become a small sweep."""

    titles = drf.ListField(child=drf.CharField(max_length=200), max_length=50, help_text="Titles of advice.")


class TryAnswer(drf.Serializer[Any]):
    created = drf.ListField(child=drf.IntegerField(), help_text="Numbers of the runs.")


class AdviceOfRun(APIView):
    """What to change in a run; POST launches it with changes, and records their predicted gains."""

    token_scope = "launch"
    permission_classes = [permissions.IsAuthenticated]

    @extend_schema(operation_id="runs_advice", responses={200: RunAdviceAnswer})
    def get(self, _request: Request, slug: str, number: int) -> Response:
        run = find_run(slug, number)
        advised = run_advice(run)
        return Response(_answer(run, advised.advice, advised.reason))

    @extend_schema(operation_id="runs_advice_try", request=TryRequest, responses={201: TryAnswer, 400: Errors})
    def post(self, request: Request, slug: str, number: int) -> Response:
        user_with("lab.add_config", request)
        user = user_with("lab.add_run", request)
        run = find_run(slug, number)
        asked = TryRequest(data=request.data)
        asked.is_valid(raise_exception=True)
        titles = asked.validated_data["titles"]
        with refused("titles", titles):
            launched = advice_launch(run=run, titles=titles, user=user)
        return Response({"created": [each.number for each in launched]}, status=status.HTTP_201_CREATED)


class AdviceOfExperiment(APIView):
    """What to try next after a sweep: changes of its fastest run that the experiment has not measured."""

    @extend_schema(operation_id="experiments_advice", responses={200: ExperimentAdviceAnswer})
    def get(self, _request: Request, slug: str) -> Response:
        experiment = get_object_or_404(Experiment, slug=slug)
        best = fastest_run(experiment)
        if best is None:
            reason = "no run of the experiment has finished"
            return Response({"run": None, "reason": reason, "advice": [], "trials": [], "edges": []})
        advised = run_advice(best)
        edges = [edge._asdict() for edge in edges_of(experiment, best)]
        return Response({**_answer(best, without_measured(best, advised.advice), advised.reason), "edges": edges})


class Score(APIView):
    """How good all tried advice was, by kind."""

    @extend_schema(operation_id="advice_score", responses={200: ScoreAnswer})
    def get(self, _request: Request) -> Response:
        trials = all_trials()
        records = [record._asdict() for record in advice_records(trials)]
        return Response({"records": records, "trials": _trials(trials[:_LISTED])})


def _answer(run: Run, advice: Sequence[Advice], reason: str) -> dict[str, Any]:
    return {
        "run": run.number,
        "reason": reason,
        "advice": [_item(run, row) for row in advice],
        "trials": _trials(tried_advice(run)),
    }


def _item(run: Run, advice: Advice) -> dict[str, Any]:
    return {
        **{name: getattr(advice, name) for name in ("title", "kind", "gain", "low", "high", "rule", "evidence")},
        "predicted_step_time_s": advice.predicted_s(run.unit_time_s) if run.unit_time_s else None,
        "part": advice.part_title,
        "cost": advice.cost,
        "risk": advice.risk,
        "settings": dict(advice.settings),
        "can_try": bool(advice.settings) and run.origin == Run.Origin.MEASURED,
    }


def _trials(trials: Iterable[AdviceTrial]) -> list[dict[str, Any]]:
    return [
        {
            **{name: getattr(trial, name) for name in ("title", "kind", "gain", "low", "high", "realised")},
            "experiment": trial.run.experiment.slug,
            "run": trial.run.number,
            "changed_experiment": trial.changed_run.experiment.slug,
            "changed_run": trial.changed_run.number,
            "state": trial.changed_run.state,
        }
        for trial in trials
    ]
