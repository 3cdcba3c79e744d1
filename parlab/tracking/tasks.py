from celery import shared_task

from parlab.tracking import runs


@shared_task(name="parlab.tracking.reap")
def reap() -> None:
    runs.reap()
