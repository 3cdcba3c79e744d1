from typing import Any

from celery import shared_task

from parlab.fleet import enrolment, services
from parlab.fleet.beats import heartbeat_receive
from parlab.ingest.refused import store_refused
from parlab.ingest.tasks import refuse_invalid
from parlab.periodic import is_due
from runners.protocol import CONTROL_QUEUE, ENROL_TASK, HEARTBEAT_TASK


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


@shared_task(name=HEARTBEAT_TASK)
def heartbeat(message: dict[str, Any]) -> None:
    try:
        heartbeat_receive(message)
    except ValueError as error:
        refuse_invalid(CONTROL_QUEUE, "heartbeat", message, error)
    store_refused()


@shared_task(name=ENROL_TASK)
def enrol(message: dict[str, Any]) -> None:
    try:
        enrolment.enrol_receive(message)
    except ValueError as error:
        refuse_invalid(CONTROL_QUEUE, "enrolment", message, error)
    store_refused()
