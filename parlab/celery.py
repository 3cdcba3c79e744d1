"""The server's Celery application; settings.py contains its settings."""

import os
from typing import Any

from celery import Celery, signals
from celery.app.amqp import AMQP
from celery.utils.imports import symbol_by_name
from django.urls import reverse

from parlab.refusals import refuse
from parlab.task_times import note_end, note_start
from runners.wire.message_filter import guarded
from runners.wire.protocol import (
    APPLY_BATCH_TASK,
    BACKLOG_QUEUE,
    CONTROL_QUEUE,
    ENROL_TASK,
    HEARTBEAT_TASK,
    INGEST_QUEUE,
)

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "parlab.settings")

_FROM_NODES = {
    APPLY_BATCH_TASK: (INGEST_QUEUE, BACKLOG_QUEUE),
    HEARTBEAT_TASK: (CONTROL_QUEUE,),
    ENROL_TASK: (CONTROL_QUEUE,),
}


def _problem(queue: str, task: str, arguments: list[Any], named: dict[str, Any]) -> str:
    """Return why a message is refused before its task starts; empty if it is not."""
    if task not in app.tasks or task.startswith("celery."):
        return "not a task of this server; its sender may have another version"
    if task in _FROM_NODES and (queue not in _FROM_NODES[task] or len(arguments) != 1 or named):
        return f"not a message of a node: {task} with wrong arguments or in the wrong queue"
    return ""


class GuardedAMQP(AMQP):
    """Connections that refuse messages which make no sense, instead of ending the worker."""

    Connection = guarded(_problem, lambda queue, reason, raw: refuse(queue, reason, size=len(raw), sample=raw))


@signals.beat_init.connect
@signals.worker_init.connect
def write_private_files(**_: Any) -> None:
    """Let files of this process be readable by its account only, as in manage.py."""
    os.umask(0o077)


signals.task_prerun.connect(note_start)
signals.task_postrun.connect(note_end)


@signals.worker_init.connect
def refuse_newer_database(**_: Any) -> None:
    """End a worker of an older release."""
    from parlab.newer_database import exit_if_newer

    exit_if_newer()


@signals.worker_init.connect
def import_pages(**_: Any) -> None:
    """Import what writes addresses of pages, because tasks do so in transactions, for which other writers wait."""
    reverse("nodes")


class Application(Celery):
    """The application, with a beat that starts quickly."""

    @property
    def Beat(self) -> Any:
        return self.subclass_with_self(symbol_by_name("parlab.steady:SteadyBeat"))


app = Application("parlab", amqp=GuardedAMQP)
app.config_from_object("django.conf:settings", namespace="CELERY")
