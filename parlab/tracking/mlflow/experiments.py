"""Endpoints below `experiments/`."""

from __future__ import annotations

from django.db.models import QuerySet
from django.utils import timezone

from parlab.lab.models import Experiment
from parlab.lab.models.access.viewer import home_project_id
from parlab.lab.services.experiments import experiment_create, named_experiment
from parlab.tracking.runs import labels_set

from .entities import DEFAULT_NAME, default_experiment, experiment_id, experiment_json, experiment_of, page_of
from .protocol import JSON, Call, MlflowError, clean, entries, invalid, invalid_value, missing, required
from .search import conditions_of, filtered_experiments, ordered_experiments

NAME_LENGTH = 500
KEY_LENGTH = 250
VALUE_LENGTH = 20_000
MAX_SEARCHED = 20
"""Experiments that one search for datasets covers, as in MLflow."""
MAX_DATASETS = 1_000
VIEWS = ("ACTIVE_ONLY", "DELETED_ONLY", "ALL")


def create(call: Call) -> JSON:
    name = call.text("name", at_most=NAME_LENGTH)
    call.text("artifact_location", "")  # checked as MLflow does; artifacts are stored by parlab
    labels = {
        _key(item.get("key")): _value(item.get("value", ""), f"tags[{index}].value")
        for index, item in enumerate(entries(call, "tags"))
    }
    existing = Experiment.objects.filter(name=name, project=home_project_id()).first()
    if existing is not None:
        state = " in deleted state; restore it or use another name" if existing.archived_at else ""
        raise MlflowError("RESOURCE_ALREADY_EXISTS", f"Experiment {name!r} already exists{state}")
    try:
        experiment = experiment_create(name=name, owner=call.user)
    except ValueError as error:
        raise MlflowError("RESOURCE_ALREADY_EXISTS", f"Experiment {name!r} already exists: {error}") from error
    if labels:
        labels_set(experiment=experiment, labels=labels)
    return {"experiment_id": experiment_id(experiment)}


def get(call: Call) -> JSON:
    return {"experiment": experiment_json(experiment_of(call.text("experiment_id"), call))}


def get_by_name(call: Call) -> JSON:
    name = call.text("experiment_name", at_most=NAME_LENGTH)
    experiment = named_experiment(name)
    if experiment is None and name == DEFAULT_NAME:
        experiment = default_experiment(call.user)
    if experiment is None:
        raise MlflowError("RESOURCE_DOES_NOT_EXIST", f"Could not find experiment with name {name[:200]!r}")
    return {"experiment": experiment_json(experiment)}


def search(call: Call) -> JSON:
    experiments: QuerySet[Experiment] = Experiment.objects.prefetch_related("labels")
    default_experiment(call.user)  # it always exists for MLflow's clients
    view = call.choice("view_type", VIEWS)
    if view != "ALL":
        experiments = experiments.filter(archived_at__isnull=view == "ACTIVE_ONLY")
    experiments = filtered_experiments(experiments, conditions_of(call.data))
    order = call.data.get("order_by")
    experiments = ordered_experiments(experiments, [order] if isinstance(order, str) else call.items("order_by"))
    page = page_of(experiments, call, default=1_000, at_most=50_000)
    answer: JSON = {"experiments": [experiment_json(experiment) for experiment in page.rows]}
    return answer | ({"next_page_token": page.token} if page.token else {})


def update(call: Call) -> JSON:
    experiment = experiment_of(call.text("experiment_id"), call, is_own=True)
    name = call.text("new_name", at_most=NAME_LENGTH)
    if experiment.archived_at is not None:
        raise MlflowError(
            "INVALID_STATE", f"Cannot rename a non-active experiment {experiment.name!r}; restore it first"
        )
    if name != experiment.name:
        if Experiment.objects.filter(name=name, project=experiment.project_id).exists():
            raise MlflowError("RESOURCE_ALREADY_EXISTS", f"Experiment {name!r} already exists; use another name")
        experiment.name = name
        experiment.save(update_fields=["name", "updated_at"])
    return {}


def delete(call: Call) -> JSON:
    return _archive(call, is_archived=True)


def restore(call: Call) -> JSON:
    return _archive(call, is_archived=False)


def _archive(call: Call, *, is_archived: bool) -> JSON:
    experiment = experiment_of(call.text("experiment_id"), call, is_own=True)
    if (experiment.archived_at is not None) == is_archived:
        state = "deleted" if is_archived else "active"
        raise missing(f"experiment that is not {state} with ID", call.text("experiment_id"))
    experiment.archived_at = timezone.now() if is_archived else None
    experiment.save(update_fields=["archived_at", "updated_at"])
    return {}


def set_tag(call: Call) -> JSON:
    experiment = _active(call)
    labels_set(experiment=experiment, labels={_key(call.data.get("key")): call.text("value", "", at_most=VALUE_LENGTH)})
    return {}


def delete_tag(call: Call) -> JSON:
    experiment = _active(call)
    key = _key(call.data.get("key"))
    if not experiment.labels.filter(key=key).delete()[0]:
        identity = experiment_id(experiment)
        raise MlflowError("RESOURCE_DOES_NOT_EXIST", f"No tag with name: {key} in experiment with id {identity}")
    return {}


def _active(call: Call) -> Experiment:
    experiment = experiment_of(call.text("experiment_id"), call)
    if experiment.archived_at is not None:
        raise invalid(
            f"The experiment {experiment_id(experiment)} must be in the 'active' state. Current state is deleted;"
            " restore it"
        )
    return experiment


def _value(value: object, place: str) -> str:
    if not isinstance(value, str):
        raise invalid_value(place, value, "expected a string")
    if len(value) > VALUE_LENGTH:
        raise invalid(f"'{place}' exceeds the maximum length of {VALUE_LENGTH} characters")
    return clean(value)


def _key(value: object) -> str:
    if value is None or value == "":
        raise required("key")
    if not isinstance(value, str) or len(value) > KEY_LENGTH:
        raise invalid_value("key", value, f"expected a string of 1 to {KEY_LENGTH} characters")
    return value


def search_datasets(call: Call) -> JSON:
    """Return the datasets that the runs of some experiments have logged, each once."""
    ids = call.items("experiment_ids")
    if not ids:
        raise invalid("SearchDatasets request must specify at least one experiment_id.")
    if len(ids) > MAX_SEARCHED:
        raise invalid(f"SearchDatasets request cannot specify more than {MAX_SEARCHED} experiment_ids.")
    summaries: dict[tuple[str, str, str, str], JSON] = {}
    for experiment in [experiment_of(str(identity), call) for identity in ids]:
        runs = experiment.runs.filter(tracked__deleted_at=None).exclude(tracked__inputs=[])
        for inputs in runs.values_list("tracked__inputs", flat=True):
            for item in inputs or []:
                summary = _dataset_summary(experiment_id(experiment), item)
                summaries.setdefault(tuple(summary.values()), summary)
    return {"dataset_summaries": list(summaries.values())[:MAX_DATASETS]}


def _dataset_summary(identity: str, item: JSON) -> JSON:
    dataset = item.get("dataset") or {}
    contexts = (tag.get("value", "") for tag in item.get("tags") or [] if tag.get("key") == "mlflow.data.context")
    name, digest = str(dataset.get("name", "")), str(dataset.get("digest", ""))
    return {"experiment_id": identity, "name": name, "digest": digest, "context": str(next(contexts, ""))}
