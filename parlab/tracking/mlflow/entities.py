"""Rows -> MLflow's JSON, and the look-ups that its IDs need."""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeVar

from django.contrib.auth.models import User
from django.db.models import Model, QuerySet

from parlab.lab.models import Experiment, LatestMetric, LoggedModel, TrackedRun
from parlab.lab.models.access.viewer import home_project_id
from parlab.lab.services.access.rights import may_change, may_work, refusal
from parlab.lab.services.experiments import experiment_create

from .protocol import JSON, Call, MlflowError, integer, invalid, required

DEFAULT_ID, DEFAULT_NAME = "0", "Default"
_LIGHT = ("uuid", "name", "deleted_at", "run__created_by_id", "run__experiment__project_id")
M = TypeVar("M", bound=Model)


def moment(milliseconds: float) -> datetime:
    """Return the time of unix milliseconds, cut to what a datetime holds."""
    return datetime.fromtimestamp(min(max(milliseconds / 1000, 0.0), 2.5e11), UTC)


def milliseconds(time: datetime) -> int:
    return int(time.timestamp() * 1000)


# --- look-ups --------------------------------------------------------------------------------------------------------


def experiment_of(experiment_id: str, call: Call, *, is_own: bool = False) -> Experiment:
    """Find an experiment by MLflow's ID; "0" creates the default one on first use.

    A request that changes something needs the right to, in the project; `is_own`: of the owner.
    """
    experiment = _experiment_by_id(experiment_id, call.user)
    if call.is_change and not (may_change if is_own else may_work)(call.user, experiment):
        raise MlflowError("PERMISSION_DENIED", refusal(call.user, experiment))
    return experiment


def _experiment_by_id(experiment_id: str, user: User) -> Experiment:
    if experiment_id == DEFAULT_ID:
        return default_experiment(user)
    number = integer(experiment_id)
    if number is None:
        raise invalid(f"Invalid experiment ID {experiment_id[:80]!r}. Experiment ID must be a valid integer.")
    experiment = Experiment.objects.filter(pk=number).first()
    if experiment is None:
        raise MlflowError("RESOURCE_DOES_NOT_EXIST", f"No experiment with id={experiment_id[:80]} exists")
    return experiment


def default_experiment(user: User) -> Experiment:
    """Return the experiment of runs that name none, of the project of the token; creates it on first use."""
    of_project = Experiment.objects.filter(name=DEFAULT_NAME, project=home_project_id())
    experiment = of_project.first()
    if experiment is not None:
        return experiment
    try:
        return experiment_create(name=DEFAULT_NAME, owner=user, question="Runs that name no experiment.")
    except ValueError:
        return of_project.get()


def run_of(call: Call, *, is_change: bool = False, is_light: bool = False) -> TrackedRun:
    """Find the run that a request names; raises MlflowError for none, or for a deleted one that is to change."""
    run_id = call.text("run_id", call.text("run_uuid", ""), at_most=256)
    if not run_id:
        raise required("run_id")
    return run_by_id(run_id, call, is_change=is_change, is_light=is_light)


def run_by_id(run_id: str, call: Call, *, is_change: bool = False, is_light: bool = False) -> TrackedRun:
    """Find a run by its ID; raises MlflowError for none, or for a deleted one that is to change.

    A light one comes with little of its run and experiment, for requests that arrive many times a second.
    """
    rows = TrackedRun.objects.filter(uuid=run_id).select_related("run__experiment")
    tracked = (rows.only(*_LIGHT) if is_light else rows).first()
    if tracked is None:
        raise MlflowError("RESOURCE_DOES_NOT_EXIST", f"Run with id={run_id[:80]} not found")
    _require_change(call, tracked)
    if is_change and tracked.deleted_at is not None:
        raise invalid(f"The run {run_id} must be in the 'active' state. Current state is deleted; restore it first")
    return tracked


def _require_change(call: Call, thing: TrackedRun | LoggedModel) -> None:
    """Raise MlflowError if a request that changes something names what belongs to another person."""
    if call.is_change and not may_change(call.user, thing):
        raise MlflowError("PERMISSION_DENIED", refusal(call.user, thing))


def model_by_id(model_id: str, call: Call, *, allow_deleted: bool = False) -> LoggedModel:
    """Find a logged model; raises MlflowError for none, or for a deleted one."""
    rows = LoggedModel.objects.select_related("tracked__run__experiment").filter(model_id=model_id[:80])
    model = (rows if allow_deleted else rows.filter(deleted_at=None)).first()
    if model is None:
        raise MlflowError("RESOURCE_DOES_NOT_EXIST", f"Logged model with ID {model_id[:80]!r} not found.")
    _require_change(call, model)
    return model


def experiment_id(experiment: Experiment) -> str:
    is_default = experiment.name == DEFAULT_NAME and experiment.project_id == home_project_id()
    return DEFAULT_ID if is_default else str(experiment.pk)


# --- JSON ------------------------------------------------------------------------------------------------------------


def experiment_json(experiment: Experiment) -> JSON:
    identity = experiment_id(experiment)
    return {
        "experiment_id": identity,
        "name": experiment.name,
        "artifact_location": f"mlflow-artifacts:/{identity}",
        "lifecycle_stage": "deleted" if experiment.archived_at else "active",
        "creation_time": milliseconds(experiment.created_at),
        "last_update_time": milliseconds(experiment.updated_at),
        "tags": [{"key": label.key, "value": label.value} for label in experiment.labels.all()],
    }


def artifact_root(tracked: TrackedRun) -> str:
    return f"mlflow-artifacts:/{experiment_id(tracked.run.experiment)}/{tracked.uuid}/artifacts"


def run_info(tracked: TrackedRun) -> JSON:
    info: JSON = {
        "run_id": tracked.uuid,
        "run_uuid": tracked.uuid,
        "run_name": tracked.name,
        "experiment_id": experiment_id(tracked.run.experiment),
        "user_id": tracked.user_name,
        "status": tracked.status,
        "start_time": tracked.start_ms or milliseconds(tracked.run.queued_at),
        "artifact_uri": artifact_root(tracked),
        "lifecycle_stage": "deleted" if tracked.deleted_at or tracked.run.experiment.archived_at else "active",
    }
    if tracked.end_ms is not None:
        info["end_time"] = tracked.end_ms
    return info


def run_json(tracked: TrackedRun) -> JSON:
    """Write a run with its data; prefetch metrics, parameters and tags for many."""
    return {
        "info": run_info(tracked),
        "data": {
            "metrics": [latest_json(metric) for metric in tracked.metrics.all()],
            "params": [{"key": parameter.key, "value": parameter.value} for parameter in tracked.parameters.all()],
            "tags": [{"key": tag.key, "value": tag.value} for tag in tracked.tags.all()],
        },
        "inputs": {
            "dataset_inputs": [item for item in tracked.inputs if "dataset" in item],
            "model_inputs": [item for item in tracked.inputs if "model_id" in item],
        },
        "outputs": {"model_outputs": tracked.outputs},
    }


def model_json(model: LoggedModel) -> JSON:
    identity = experiment_id(model.tracked.run.experiment)
    return {
        "info": {
            "model_id": model.model_id,
            "experiment_id": identity,
            "name": model.name,
            "creation_timestamp_ms": model.created_ms,
            "last_updated_timestamp_ms": model.updated_ms,
            "artifact_uri": f"mlflow-artifacts:/{identity}/models/{model.model_id}/artifacts",
            "status": model.status,
            "model_type": model.model_type,
            "source_run_id": model.tracked.uuid if model.has_run else "",
            "tags": [{"key": key, "value": value} for key, value in model.tags.items()],
        },
        "data": {
            "params": [{"key": key, "value": value} for key, value in model.parameters.items()],
            "metrics": model.metrics,
        },
    }


def latest_json(metric: LatestMetric) -> JSON:
    return metric_json(metric.key, math.nan if metric.value is None else metric.value, metric.timestamp_ms, metric.step)


def metric_json(key: str, value: float, timestamp_ms: int, step: int) -> JSON:
    return {"key": key, "value": number_json(value), "timestamp": timestamp_ms, "step": step}


def number_json(value: float) -> float | str:
    """Write a float as protobuf's JSON does: NaN and infinities are texts."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


# --- pages of results ------------------------------------------------------------------------------------------------


class ResultPage(NamedTuple):
    """A page of rows and the token of the next one; an empty token at the end."""

    rows: list[Any]
    token: str


def page_of(rows: QuerySet[M] | Sequence[Any], call: Call, *, default: int, at_most: int) -> ResultPage:
    """Cut the page that `max_results` and `page_token` ask for."""
    size = call.whole("max_results", default, at_least=1, at_most=at_most)
    start = _offset(call.text("page_token", "", at_most=500))
    page = list(rows[start : start + size + 1])
    return ResultPage(page[:size], _token(start + size) if len(page) > size else "")


def _token(offset: int) -> str:
    return base64.b64encode(json.dumps({"offset": offset}).encode()).decode()


def _offset(token: str) -> int:
    if not token:
        return 0
    try:
        offset = integer(json.loads(base64.b64decode(token, validate=True))["offset"])
    except (binascii.Error, ValueError, KeyError, TypeError):
        offset = None
    if offset is None or not 0 <= offset < 10**12:
        raise invalid(f"Invalid page_token {token[:80]!r}; use the one of the page before")
    return offset
