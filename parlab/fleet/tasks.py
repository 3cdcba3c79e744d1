from typing import Any

from celery import shared_task
from django.core.cache import cache

from parlab.fleet import enrolment, services
from parlab.fleet.beats import heartbeat_receive
from parlab.ingest.refused import store_refused
from parlab.ingest.tasks import refuse_invalid
from runners.protocol import CONTROL_QUEUE, ENROL_TASK, HEARTBEAT_TASK

DISPATCH_EVERY_S = 0.5


@shared_task(name="parlab.fleet.dispatch")
def dispatch() -> None:
    # A worker that lags behind has many of these in its queue, and one is enough. They must not expire there instead,
    # because then a worker that stays behind would start no run at all.
    if cache.add("parlab.fleet.dispatch", True, DISPATCH_EVERY_S):
        services.dispatch()
    store_refused()


@shared_task(name="parlab.fleet.reap")
def reap() -> None:
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
