"""Runs: begin, resume, change, delete; and as W&B's clients read them."""

from __future__ import annotations

import json
import uuid
from typing import Any

from django.contrib.auth.models import User
from django.db import IntegrityError, transaction
from django.db.models import Max, Q

from parlab.lab.models import AuditEntry, Experiment, TrackedRun, WandbRun
from parlab.lab.models.access.viewer import viewing
from parlab.lab.models.wandb import RUN_ID_LENGTH
from parlab.lab.services import storable
from parlab.tracking import runs as services
from parlab.tracking.stores.foreign import flattened, identity_of
from runners.wire.protocol import RunState

from .machines import machine_of
from .projects import UNNAMED, experiment_of, find_experiment, find_run, home_entity, own, run_by_key
from .protocol import JSON, Call, WandbError

TRACKER = "wandb"
HISTORY, EVENTS, CONSOLE, SUMMARY = "wandb-history.jsonl", "wandb-events.jsonl", "output.log", "wandb-summary.json"
"""The files that a client streams."""
STATES = {
    RunState.FINISHED: "finished",
    RunState.FAILED: "failed",
    RunState.OOM: "failed",
    RunState.CANCELLED: "killed",
    RunState.LOST: "crashed",
    RunState.CHECKPOINTED: "preempted",
    RunState.TIME_LIMIT: "failed",
    RunState.PREEMPTED: "preempted",
}
_INTERNAL = ("_wandb", "wandb_version")
_FACTS = {
    "group": ("groupName",),
    "job_type": ("jobType",),
    "notes": ("notes",),
    "host": ("host",),
    "program": ("program",),
    "commit": ("commit",),
    "description": ("description",),
    "sweep": ("sweep",),
}
"""Facts of a run, stored as tags `wandb.NAME`, by the variables that state them."""


def upsert(call: Call) -> JSON:
    """Begin a run, let it go on, or change what is known about it."""
    key = call.text("id")
    # A script that begins, or goes on, states its host; later changes, and those of Api(), do not.
    is_begun = bool(call.text("host"))
    run, is_new = (run_by_key(key), False) if key else _found_or_begun(call)
    own(call, run)
    writer = call.http.headers.get("X-Wandb-Client-Id", "")[:64]
    with transaction.atomic():
        attempt, tracked = services.lock(run.tracked)
        run = WandbRun.objects.select_related("tracked__run__experiment").get(pk=run.pk)
        _change(run, call)
        if writer:
            run.writers.setdefault(writer, {"rank": len(run.writers)})
        elif is_begun and key:
            run.writers.setdefault("", {})["resumed"] = True
        run.save()
        if is_begun and RunState(attempt.state) != RunState.RUNNING:
            services.tracked_run_update(tracked=tracked, status=TrackedRun.Status.RUNNING)
    bucket = run_json(run_by_key(run.tracked.uuid), call)
    if is_begun and not key:
        # A script that begins without the server's ID does not resume: it counts its lines from the beginning.
        bucket["historyLineCount"] = 0
    return {"upsertBucket": {"bucket": bucket, "inserted": is_new}}


def _found_or_begun(call: Call) -> tuple[WandbRun, bool]:
    """Return the run that a request names, and whether it is new."""
    run_id = call.text("name")[:RUN_ID_LENGTH]
    if not run_id:
        raise WandbError("name is empty; send the ID of the run")
    experiment = experiment_of(call.text("entity"), call.text("project"), call.user, is_new=True)
    for _ in range(3):
        run = find_run(experiment, run_id)
        if run is not None:
            return run, False
        try:
            return _begin(experiment, run_id, call.user, call.text("displayName", "display_name") or run_id), True
        except IntegrityError:
            continue  # another writer of a shared run was faster
    raise WandbError(f"run {run_id!r} cannot be created now; try again", 409)


@transaction.atomic
def _begin(experiment: Experiment, run_id: str, user: User, name: str, *, replaced: WandbRun | None = None) -> WandbRun:
    """Create a run; the replaced one, or one that was deleted, keeps its data without the ID.

    Raises IntegrityError where another writer has created the run at the same moment.
    """
    is_set_aside = Q(tracked__deleted_at__isnull=False) | Q(pk=replaced.pk if replaced else None)
    for earlier in WandbRun.objects.filter(is_set_aside, experiment=experiment, run_id=run_id):
        WandbRun.objects.filter(pk=earlier.pk).update(run_id=f"{run_id[:100]}~{earlier.pk}")
    # The ID that an import of the same run's directory derives: both are one run.
    identity = identity_of(TRACKER, experiment.name, run_id)
    with viewing(None):  # also in a project that the sender does not see: identities are unique on the server
        imported = TrackedRun.objects.select_related("run").filter(uuid=identity).first()
    if imported is not None and not hasattr(imported, "wandb") and imported.run.experiment_id == experiment.pk:
        return _adopted(imported, experiment, run_id)
    if imported is not None:
        identity = identity_of(TRACKER, str(experiment.pk), run_id, uuid.uuid4().hex)
    tracked = services.tracked_run_start(
        experiment=experiment,
        user=user,
        name=name,
        user_name=user.get_username(),
        tags={"wandb.run_id": run_id},
        run_uuid=identity,
    )
    return WandbRun.objects.create(tracked=tracked, experiment=experiment, run_id=run_id)


def _adopted(tracked: TrackedRun, experiment: Experiment, run_id: str) -> WandbRun:
    """Return a run whose directory was imported, with the place up to which its points are stored."""
    attempt = tracked.run.current_attempt()
    stored = {"step": attempt.last_step, "ms": tracked.metrics.aggregate(last=Max("timestamp_ms"))["last"]}
    writers = {"": {"rank": 0, "imported": stored}}
    return WandbRun.objects.create(tracked=tracked, experiment=experiment, run_id=run_id, writers=writers)


def begin_again(run: WandbRun, user: User) -> WandbRun:
    """Begin a run with the ID and settings of one that a script has started again without resuming it."""
    config, facts = run.config, run.facts
    with transaction.atomic():
        new = _begin(run.experiment, run.run_id, user, run.tracked.name, replaced=run)
        new.config, new.facts = config, facts
        new.save()
        _note_machine(new)
        services.parameters_replace(tracked=new.tracked, parameters=_parameters(config))
        services.tags_set(tracked=new.tracked, tags=_tags(facts))
        if run.tracked.status == TrackedRun.Status.RUNNING:
            services.tracked_run_update(
                tracked=run.tracked, status=TrackedRun.Status.KILLED, reason="started again under the same ID"
            )
    return new


def _change(run: WandbRun, call: Call) -> None:
    """Apply what a request states about a run: configuration, name, tags, notes, group."""
    config = call.document("config")
    if config is not None:
        run.config = storable.json(_merged(run.config, config))
        services.parameters_replace(tracked=run.tracked, parameters=_parameters(run.config))
        _note_machine(run)
    stated = {name: call.text(*variables) for name, variables in _FACTS.items() if call.text(*variables)}
    tags = call.texts("tags")
    if tags is not None:
        stated["tags"] = tags  # type: ignore[assignment]
    if stated:
        run.facts = {**run.facts, **stated}
        services.tags_set(tracked=run.tracked, tags=_tags(run.facts))
    summary = call.document("summaryMetrics")
    if summary is not None:
        run.summary = storable.json(summary)
    name = call.text("displayName", "display_name")
    if name and name != run.tracked.name:
        services.tracked_run_update(tracked=run.tracked, name=name)


def _note_machine(run: WandbRun) -> None:
    """Keep what a configuration says about the machine with the attempt that runs on it."""
    facts = storable.json(machine_of(_writers(run.config)))
    attempt = run.tracked.run.current_attempt()
    if facts and facts != {name: attempt.environment.get(name) for name in facts}:
        attempt.environment = {**attempt.environment, **facts}
        attempt.save(update_fields=["environment"])


def _merged(before: JSON, config: JSON) -> JSON:
    """Return a configuration as sent, with the writers of W&B's own part that other processes have stated."""
    writers = {**_writers(before), **_writers(config)}
    if not writers:
        return config
    own = config.get("_wandb")
    value = own.get("value") if isinstance(own, dict) else None
    return {**config, "_wandb": {"value": {**(value if isinstance(value, dict) else {}), "e": writers}}}


def _writers(config: JSON) -> JSON:
    own = config.get("_wandb")
    value = own.get("value") if isinstance(own, dict) else None
    writers = value.get("e") if isinstance(value, dict) else None
    return writers if isinstance(writers, dict) else {}


def _parameters(config: JSON) -> dict[str, str]:
    """Return the settings of a configuration as parameters: {"lr": {"value": 0.1}} -> {"lr": "0.1"}."""
    stated = {
        key: item["value"] if isinstance(item, dict) and "value" in item else item
        for key, item in config.items()
        if key not in _INTERNAL
    }
    return flattened(stated)


def _tags(facts: JSON) -> dict[str, str]:
    texts = {
        f"wandb.{name}": ", ".join(value) if isinstance(value, list) else str(value) for name, value in facts.items()
    }
    return {key: storable.text(text)[:8_000] for key, text in texts.items()}


def delete(call: Call) -> JSON:
    run = own(call, run_by_key(call.text("id")))
    services.tracked_run_delete(tracked=run.tracked)
    call.record(AuditEntry.Action.DELETE, "DeleteRun", run.tracked.run.get_absolute_url())
    return {"deleteRun": {"clientMutationId": None, "success": True}}


def stop(call: Call) -> JSON:
    own(call, run_by_key(call.text("id")))
    raise WandbError("StopRun is not served: parlab cannot stop a script that it did not launch; end it where it runs")


# --- reading ---------------------------------------------------------------------------------------------------------


def resume_status(call: Call) -> JSON:
    """Return how far a run is, for a client that wants to go on with it; no bucket for a new one."""
    entity, name = call.text("entity") or home_entity(call.user), call.text("project") or UNNAMED
    experiment = find_experiment(entity, name)
    run = find_run(experiment, call.text("name")) if experiment is not None else None
    model: JSON = {"id": name, "name": name, "entity": {"id": entity, "name": entity}, "bucket": None}
    if run is not None:
        positions = run.positions.get("", {})
        last = {"_step": max(last_step(run), 0), "_runtime": _runtime(run)}
        lines = positions.get(HISTORY, 0)
        model["bucket"] = run_json(run, call) | {
            "logLineCount": lines_of_console(run),
            "historyLineCount": lines,
            "eventsLineCount": positions.get(EVENTS, 0),
            "historyTail": json.dumps([json.dumps(last)] if lines else []),
            "eventsTail": json.dumps([json.dumps({"_runtime": last["_runtime"]})]),
            "wandbConfig": json.dumps({"t": 1}),
        }
    return {"model": model}


def last_step(run: WandbRun) -> int:
    """Return the last step at which anything was logged; -1 for none."""
    numbers: int | None = run.tracked.run.current_attempt().last_step
    values: int | None = run.tracked.values.aggregate(last=Max("step"))["last"]
    return max((step for step in (numbers, values) if step is not None), default=-1)


def lines_of_console(run: WandbRun) -> int:
    """Return how many lines of the console the client has sent; a resumed one continues from there."""
    held = run.writers.get("", {}).get("line")
    stored: int = run.positions.get("", {}).get(CONSOLE, 0)
    return max(stored, int(held[0]) + 1) if held else stored


def _runtime(run: WandbRun) -> float:
    value = run.summary.get("_runtime", 0)
    own = run.summary.get("_wandb")
    runtime = own.get("runtime", 0) if isinstance(own, dict) else 0
    return max((float(each) for each in (value, runtime) if isinstance(each, int | float)), default=0.0)


def run_json(run: WandbRun, call: Call) -> JSON:
    """Write a run with the fields of all queries; clients ignore those that they did not ask for."""
    tracked, experiment = run.tracked, run.tracked.run.experiment
    entity = call.text("entity", "entityName") or home_entity(call.user)
    user = tracked.user_name or entity
    tags = run.facts.get("tags")
    project = {
        "id": str(experiment.pk),
        "internalId": str(experiment.pk),
        "name": experiment.name,
        "entity": {"id": entity, "name": entity},
        "entityName": entity,
    }
    return {
        "id": tracked.uuid,
        "internalId": str(tracked.pk),
        "name": run.run_id,
        "displayName": tracked.name or run.run_id,
        "description": run.facts.get("description", ""),
        "notes": run.facts.get("notes", ""),
        "config": json.dumps(run.config),
        "sweepName": None,
        "state": STATES.get(RunState(tracked.run.state), "running"),
        "tags": tags if isinstance(tags, list) else [],
        "group": run.facts.get("group"),
        "jobType": run.facts.get("job_type"),
        "commit": run.facts.get("commit"),
        "host": run.facts.get("host"),
        "readOnly": False,
        "stopped": False,
        "createdAt": _time(tracked.run.started_at or tracked.run.queued_at),
        "heartbeatAt": _time(tracked.last_report_at),
        "updatedAt": _time(tracked.last_report_at),
        "systemMetrics": "{}",
        "summaryMetrics": json.dumps(run.summary),
        "historyLineCount": max((each.get(HISTORY, 0) for each in run.positions.values()), default=0),
        "historyKeys": None,
        "user": {"id": user, "name": user, "username": user, "email": ""},
        "projectId": str(experiment.pk),
        "project": project,
        "defaultColorIndex": "0",
        "runInfo": None,
    }


def _time(moment: Any) -> str:
    return str(moment.strftime("%Y-%m-%dT%H:%M:%SZ"))
