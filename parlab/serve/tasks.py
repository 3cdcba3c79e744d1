from celery import shared_task

from parlab.serve.readiness import alive_note


@shared_task(name="parlab.serve.alive")
def alive(queue: str) -> None:
    alive_note(queue)
