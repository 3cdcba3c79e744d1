from celery import shared_task

from parlab.tracking import artifacts, runs


@shared_task(name="parlab.tracking.reap")
def reap() -> None:
    runs.reap()


@shared_task(name="parlab.tracking.prune")
def prune() -> None:
    artifacts.uploads_prune()
