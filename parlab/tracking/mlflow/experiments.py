"""Endpoints below `experiments/`."""

from __future__ import annotations

from django.db.models import QuerySet
from django.utils import timezone

from parlab.lab.models import Experiment
from parlab.lab.services import experiment_create
from parlab.tracking.runs import labels_set

from .entities import DEFAULT_NAME, default_experiment, experiment_id, experiment_json, experiment_of, page_of
from .protocol import JSON, Call, MlflowError, entries, invalid, missing
from .search import conditions_of, filtered_experiments, ordered_experiments

NAME_LENGTH = 500
KEY_LENGTH = 250
VALUE_LENGTH = 20_000
_VIEWS = ("ACTIVE_ONLY", "DELETED_ONLY", "ALL")


def create(call: Call) -> JSON:
    name = call.text("name", at_most=NAME_LENGTH)
    labels = {_key(item.get("key")): str(item.get("value", ""))[:VALUE_LENGTH] for item in entries(call, "tags")}
    existing = Experiment.objects.filter(name=name).first()
    if existing is not None:
        state = "is deleted; restore it or use another name" if existing.archived_at else "exists already"
        raise MlflowError("RESOURCE_ALREADY_EXISTS", f"Experiment {name!r} {state}")
    try:
        experiment = experiment_create(name=name, owner=call.user)
    except ValueError as error:
        raise MlflowError("RESOURCE_ALREADY_EXISTS", f"Experiment {name!r} exists already: {error}") from error
    if labels:
        labels_set(experiment=experiment, labels=labels)
    return {"experiment_id": experiment_id(experiment)}


def get(call: Call) -> JSON:
    return {"experiment": experiment_json(experiment_of(call.text("experiment_id"), call.user))}


def get_by_name(call: Call) -> JSON:
    name = call.text("experiment_name", at_most=NAME_LENGTH)
    experiment = Experiment.objects.filter(name=name).first()
    if experiment is None and name == DEFAULT_NAME:
        experiment = default_experiment(call.user)
    if experiment is None:
        raise missing("experiment named", name)
    return {"experiment": experiment_json(experiment)}


def search(call: Call) -> JSON:
    experiments: QuerySet[Experiment] = Experiment.objects.prefetch_related("labels")
    view = call.text("view_type", "ACTIVE_ONLY")
    if view not in _VIEWS:
        raise invalid(f"Invalid value {view[:40]!r} for parameter 'view_type'; use one of {', '.join(_VIEWS)}")
    if view != "ALL":
        experiments = experiments.filter(archived_at__isnull=view == "ACTIVE_ONLY")
    experiments = filtered_experiments(experiments, conditions_of(call.data))
    order = call.data.get("order_by")
    experiments = ordered_experiments(experiments, [order] if isinstance(order, str) else call.items("order_by"))
    page = page_of(experiments, call, default=1_000, at_most=50_000)
    answer: JSON = {"experiments": [experiment_json(experiment) for experiment in page.rows]}
    return answer | ({"next_page_token": page.token} if page.token else {})


def update(call: Call) -> JSON:
    experiment = experiment_of(call.text("experiment_id"), call.user)
    name = call.text("new_name", "", at_most=NAME_LENGTH)
    if experiment.archived_at is not None:
        raise invalid(f"Experiment {experiment.name!r} is deleted and must be restored before it can change")
    if name and name != experiment.name:
        if Experiment.objects.filter(name=name).exists():
            raise MlflowError("RESOURCE_ALREADY_EXISTS", f"Experiment {name!r} exists already; use another name")
        experiment.name = name
        experiment.save(update_fields=["name", "updated_at"])
    return {}


def delete(call: Call) -> JSON:
    return _archive(call, is_archived=True)


def restore(call: Call) -> JSON:
    return _archive(call, is_archived=False)


def _archive(call: Call, *, is_archived: bool) -> JSON:
    experiment = experiment_of(call.text("experiment_id"), call.user)
    if (experiment.archived_at is not None) == is_archived:
        state = "deleted" if is_archived else "active"
        raise missing(f"experiment that is not {state} with ID", call.text("experiment_id"))
    experiment.archived_at = timezone.now() if is_archived else None
    experiment.save(update_fields=["archived_at", "updated_at"])
    return {}


def set_tag(call: Call) -> JSON:
    experiment = experiment_of(call.text("experiment_id"), call.user)
    labels_set(experiment=experiment, labels={_key(call.data.get("key")): call.text("value", "", at_most=VALUE_LENGTH)})
    return {}


def delete_tag(call: Call) -> JSON:
    experiment = experiment_of(call.text("experiment_id"), call.user)
    key = _key(call.data.get("key"))
    if not experiment.labels.filter(key=key).delete()[0]:
        raise missing(f"tag of experiment {experiment.name!r} with key", key)
    return {}


def _key(value: object) -> str:
    if not isinstance(value, str) or not value or len(value) > KEY_LENGTH:
        raise invalid(f"Invalid tag key {str(value)[:80]!r}; use 1 to {KEY_LENGTH} characters")
    return value
