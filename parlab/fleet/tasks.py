from functools import partial
from typing import Any

from celery import Task, shared_task
from django.conf import settings

from parlab.fleet import enrolment, services
from parlab.fleet.beats import heartbeats_receive
from parlab.ingest.batches.refused import store_refused
from parlab.ingest.batches.waiting import take_heartbeats
from parlab.ingest.tasks import refuse_invalid
from parlab.periodic import is_due
from runners.wire.protocol import CONTROL_QUEUE, ENROL_TASK, HEARTBEAT_TASK


@shared_task(name="parlab.fleet.dispatch")
def dispatch() -> None:
    if is_due("dispatch", 0.5):
        services.dispatch()
    store_refused()


@shared_task(name="parlab.fleet.reap")
def reap() -> None:
    if is_due("reap", 2.0):
        services.reap()
    store_refused()


@shared_task(name=HEARTBEAT_TASK, bind=True)
def heartbeat(self: "Task[..., None]", message: dict[str, Any]) -> None:
    """Take a heartbeat, and all that wait behind it."""
    envelopes = [message]
    if not self.request.called_directly and not self.request.is_eager:
        envelopes += take_heartbeats(settings.REDIS_URL)
    heartbeats_receive(envelopes, partial(refuse_invalid, CONTROL_QUEUE, "heartbeat"))
    store_refused()


@shared_task(name=ENROL_TASK)
def enrol(message: dict[str, Any]) -> None:
    try:
        enrolment.enrol_receive(message)
    except ValueError as error:
        refuse_invalid(CONTROL_QUEUE, "enrolment", message, error)
    store_refused()
