from typing import Any

from celery import shared_task

from parlab.fleet import services
from runners.protocol import HEARTBEAT_TASK, Heartbeat


@shared_task(name="parlab.fleet.dispatch")
def dispatch() -> None:
    services.dispatch()


@shared_task(name="parlab.fleet.reap")
def reap() -> None:
    services.reap()


@shared_task(name=HEARTBEAT_TASK)
def heartbeat(message: dict[str, Any]) -> None:
    services.heartbeat(message=Heartbeat.model_validate(message))
