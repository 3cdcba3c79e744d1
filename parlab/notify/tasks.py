from celery import shared_task

from parlab.lab.services.access.audit import audit_forget
from parlab.notify import services


@shared_task(name="parlab.notify.deliver")
def deliver() -> None:
    services.deliver()


@shared_task(name="parlab.notify.prune")
def prune() -> None:
    services.prune()
    audit_forget()
