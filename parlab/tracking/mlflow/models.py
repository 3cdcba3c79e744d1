"""Endpoints below `logged-models/`: models of MLflow 3 that runs log. Their files are artifacts of their runs."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from django.db import transaction
from django.http.response import HttpResponseBase
from django.utils import timezone

from parlab.lab.models import LoggedModel, TrackedRun
from parlab.tracking import artifacts
from parlab.tracking.runs import tracked_run_start, tracked_run_update

from .entities import experiment_of, metric_json, milliseconds, model_by_id, model_json, page_of, run_by_id
from .files import download_of, safe_path
from .points import point_of
from .protocol import JSON, Call, MlflowError, clean, entries, integer, invalid, invalid_value, missing, required
from .search import Term, conditions_of, parse_filter, text_matches

_RUN_ID = re.compile(r"[\w.-]{1,64}", re.ASCII)
KEY_LENGTH = 250
VALUE_LENGTH = 8_000
MAX_PAIRS = 10_000
MAX_SEARCHED = 5_000
STATUSES = LoggedModel.Status.values
Status = LoggedModel.Status
_ATTRIBUTES: dict[str, Callable[[LoggedModel], Any]] = {
    "name": lambda model: model.name,
    "model_id": lambda model: model.model_id,
    "model_type": lambda model: model.model_type,
    "status": lambda model: model.get_status_display().upper().replace(" ", "_"),
    "source_run_id": lambda model: model.tracked.uuid if model.has_run else "",
    "creation_timestamp": lambda model: float(model.created_ms),
    "creation_time": lambda model: float(model.created_ms),
    "last_updated_timestamp": lambda model: float(model.updated_ms),
    "last_updated_time": lambda model: float(model.updated_ms),
}


def create(call: Call) -> JSON:
    experiment = experiment_of(call.text("experiment_id"), call)
    identity = f"m-{uuid.uuid4().hex}"
    name = call.text("name", f"model-{identity[2:10]}", at_most=500)
    if "/" in name or ":" in name:
        raise invalid(
            f"Invalid model name ({name[:80]!r}) provided. Model name must be a non-empty string without / or :"
        )
    run_id = call.text("source_run_id", "", at_most=64)
    if run_id and not _RUN_ID.fullmatch(run_id):
        raise invalid_value("source_run_id", run_id, "expected letters, digits, points, dashes and underscores")
    parameters, tags = _pairs(call, "params"), _pairs(call, "tags")
    with transaction.atomic():
        if run_id and TrackedRun._base_manager.filter(uuid=run_id).exists():
            tracked = run_by_id(run_id, call, is_change=True)
        else:
            # MLflow takes a run that nobody has begun, or none: the model has one of its own then, which has ended.
            tracked = tracked_run_start(experiment=experiment, user=call.user, name=name, run_uuid=run_id or None)
            tracked_run_update(tracked=tracked, status=TrackedRun.Status.FINISHED, is_news=False)
            tracked = run_by_id(tracked.uuid, call)
        now_ms = milliseconds(timezone.now())
        model = LoggedModel.objects.create(
            tracked=tracked,
            has_run=bool(run_id),
            model_id=identity,
            name=name,
            model_type=call.text("model_type", "", at_most=500),
            created_ms=now_ms,
            updated_ms=now_ms,
            parameters=parameters,
            tags=tags,
        )
    return {"model": model_json(model)}


def get(call: Call) -> JSON:
    allow_deleted = str(call.data.get("allow_deleted", "")).lower() == "true"
    return {"model": model_json(model_by_id(call.text("model_id"), call, allow_deleted=allow_deleted))}


def finalize(call: Call) -> JSON:
    value = call.data.get("status")
    number = integer(value)
    if value is None or value == "":
        raise required("status")
    if number is not None and 0 <= number < len(STATUSES):
        value = STATUSES[number]
    if value not in STATUSES:
        raise invalid_value("status", value, f"use one of {', '.join(STATUSES)}")
    return {"model": model_json(_changed(call, lambda model: setattr(model, "status", value)))}


def delete(call: Call) -> JSON:
    _changed(call, lambda model: setattr(model, "deleted_at", timezone.now()))
    return {}


def set_tags(call: Call) -> JSON:
    tags = _pairs(call, "tags")
    return {"model": model_json(_changed(call, lambda model: model.tags.update(tags)))}


def delete_tag(call: Call) -> JSON:
    key = call.text("tag_key")

    def remove(model: LoggedModel) -> None:
        if model.tags.pop(key, None) is None:
            raise missing(f"tag of logged model {model.model_id} with key", key)

    _changed(call, remove)
    return {}


def log_parameters(call: Call) -> JSON:
    parameters = _pairs(call, "params")
    _changed(call, lambda model: model.parameters.update(parameters))
    return {}


def artifact(call: Call) -> HttpResponseBase:
    """Download a file of a logged model, where MLflow's pages look for it."""
    model = model_by_id(call.text("model_id"), call)
    if not call.data.get("artifact_file_path"):
        raise MlflowError("BAD_REQUEST", 'Request must include the "artifact_file_path" query parameter.')
    return download_of(model.tracked, f"{model.folder}/{safe_path(call.text('artifact_file_path'))}")


def list_artifacts(call: Call) -> JSON:
    model = model_by_id(call.text("model_id"), call)
    folder = safe_path(call.text("artifact_directory_path", ""))
    prefix = f"{model.folder}/"
    listed = artifacts.listing(model.tracked, f"{prefix}{folder}".rstrip("/"))
    files = [
        {"path": entry.path.removeprefix(prefix), "is_dir": entry.is_dir}
        | ({} if entry.is_dir else {"file_size": entry.size})
        for entry in listed
    ]
    return {"root_uri": model_json(model)["info"]["artifact_uri"], "files": files}


@transaction.atomic
def _changed(call: Call, change: Callable[[LoggedModel], Any]) -> LoggedModel:
    model = model_by_id(call.text("model_id"), call)
    model = LoggedModel.objects.select_for_update(of=("self",), no_key=True).select_related(
        "tracked__run__experiment"
    ).get(pk=model.pk)  # fmt: skip
    change(model)
    if len(model.parameters) > MAX_PAIRS or len(model.tags) > MAX_PAIRS:
        raise invalid(f"Logged model {model.model_id} would have more than {MAX_PAIRS} parameters or tags")
    model.updated_ms = milliseconds(timezone.now())
    model.save()
    return model


def _pairs(call: Call, name: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for index, item in enumerate(entries(call, name)):
        key, value = item.get("key"), item.get("value", "")
        if not isinstance(key, str) or not 0 < len(key) <= KEY_LENGTH:
            raise invalid_value(f"{name}[{index}].key", key, f"expected a string of 1 to {KEY_LENGTH} characters")
        if not isinstance(value, str):
            raise invalid_value(f"{name}[{index}].value", value, "expected a string")
        pairs[clean(key)] = clean(value)[:VALUE_LENGTH]
    return pairs


@transaction.atomic
def metrics_note(tracked: TrackedRun, items: Sequence[Mapping[str, Any]]) -> None:
    """Keep with each logged model the latest value of the metrics that name it."""
    by_model: dict[str, list[Mapping[str, Any]]] = {}
    for item in items:
        if isinstance(item.get("model_id"), str) and item["model_id"]:
            by_model.setdefault(item["model_id"], []).append(item)
    rows = LoggedModel.objects.select_for_update(no_key=True).filter(model_id__in=list(by_model), deleted_at=None)
    for model in rows:
        latest = {_metric_key(metric): metric for metric in model.metrics}
        for item in by_model[model.model_id]:
            named = {name: clean(str(item[name])) for name in ("dataset_name", "dataset_digest") if item.get(name)}
            point = point_of(item, "")
            metric = {**metric_json(*point), **named, "model_id": model.model_id, "run_id": tracked.uuid}
            previous = latest.get(_metric_key(metric))
            if previous is None or point.step >= previous["step"]:
                latest[_metric_key(metric)] = metric
        LoggedModel.objects.filter(pk=model.pk).update(metrics=list(latest.values())[:1_000])


def _metric_key(metric: Mapping[str, Any]) -> tuple[Any, ...]:
    return metric.get("key"), metric.get("dataset_name"), metric.get("dataset_digest")


# --- search ----------------------------------------------------------------------------------------------------------


def search(call: Call) -> JSON:
    ids = call.items("experiment_ids")
    if not ids:
        raise required("experiment_ids")
    keys = [experiment_of(str(identity), call).pk for identity in ids[:1_000]]
    rows = LoggedModel.objects.filter(deleted_at=None, tracked__run__experiment__in=keys, tracked__deleted_at=None)
    terms, datasets = parse_filter(conditions_of(call.data)), _datasets(call)
    # Datasets restrict the metrics of a condition; without one, the models that have any metric of them.
    needs_metric = bool(datasets) and not any(term.kind == "metric" for term in terms)
    models = [
        model
        for model in rows.select_related("tracked__run__experiment")[:MAX_SEARCHED]
        if all(_matches(model, term, datasets) for term in terms)
        and not (needs_metric and not any(_is_of(metric, datasets) for metric in model.metrics))
    ]
    for clause in reversed(entries(call, "order_by")):
        _sort(models, clause)
    page = page_of(models, call, default=100, at_most=50_000)
    answer: JSON = {"models": [model_json(model) for model in page.rows]}
    return answer | ({"next_page_token": page.token} if page.token else {})


def _datasets(call: Call) -> list[Mapping[str, Any]]:
    datasets = entries(call, "datasets")
    if not all(dataset.get("dataset_name") for dataset in datasets):
        raise invalid("`dataset_name` in the `datasets` clause must be specified.")
    return datasets


def _matches(model: LoggedModel, term: Term, datasets: Sequence[Mapping[str, Any]]) -> bool:
    if term.kind == "metric":
        values: list[Any] = _metric_values(model, term.key, datasets)
    else:
        value = _value(model, term.kind, term.key)
        values = [] if value is None else [value]
    if term.operator in ("IS NULL", "IS NOT NULL"):
        return (not values) == (term.operator == "IS NULL")
    if any(isinstance(value, float) != isinstance(term.value, float) for value in values):
        raise invalid(f"Invalid value {term.value!r} for {term.kind} {term.key!r}: numbers without, texts in quotes")
    return any(text_matches(term, value) for value in values)


def _metric_values(model: LoggedModel, key: str, datasets: Sequence[Mapping[str, Any]]) -> list[float]:
    return [float(metric["value"]) for metric in model.metrics if metric.get("key") == key and _is_of(metric, datasets)]


def _value(model: LoggedModel, kind: str, key: str, datasets: Sequence[Mapping[str, Any]] = ()) -> Any:
    if kind == "param":
        return model.parameters.get(key)
    if kind == "tag":
        return model.tags.get(key)
    if kind == "metric":
        return next(iter(_metric_values(model, key, datasets)), None)
    if kind != "attribute" or key not in _ATTRIBUTES:
        raise invalid(f"Invalid attribute key {key!r}; use one of {', '.join(sorted(_ATTRIBUTES))}")
    return _ATTRIBUTES[key](model)


def _is_of(metric: Mapping[str, Any], datasets: Sequence[Mapping[str, Any]]) -> bool:
    return not datasets or any(
        metric.get("dataset_name") == dataset.get("dataset_name")
        and dataset.get("dataset_digest") in (None, "", metric.get("dataset_digest"))
        for dataset in datasets
    )


def _sort(models: list[LoggedModel], clause: Mapping[str, Any]) -> None:
    """Sort by one clause; models without the value come last."""
    field = str(clause.get("field_name") or "")
    head, dot, key = field.partition(".")
    kinds = {"metrics": "metric", "metric": "metric", "params": "param", "param": "param", "tags": "tag", "tag": "tag"}
    kind, key = (kinds.get(head, "attribute"), key if dot and head in (*kinds, "attributes", "attribute") else field)
    datasets = [clause] if clause.get("dataset_name") else []
    is_descending = clause.get("ascending") is False
    present = [model for model in models if _value(model, kind, key, datasets) is not None]
    absent = [model for model in models if _value(model, kind, key, datasets) is None]
    present.sort(key=lambda model: _value(model, kind, key, datasets), reverse=is_descending)
    models[:] = [*present, *absent]
