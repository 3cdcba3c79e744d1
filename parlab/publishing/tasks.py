"""Tasks of the queue `pictures`: drawing takes seconds, so a separate worker does it."""

import logging

from celery import shared_task
from kombu.exceptions import OperationalError

from parlab.lab.services.pictures import picture_jobs_stalled
from parlab.publishing.draw import draw as draw_job

logger = logging.getLogger(__name__)


@shared_task(name="parlab.publishing.draw")
def draw(job_id: int) -> None:
    draw_job(job_id=job_id)


@shared_task(name="parlab.publishing.resume")
def resume() -> None:
    """Send again jobs that were never started, and jobs of killed workers."""
    for job_id in picture_jobs_stalled().values_list("pk", flat=True)[:20]:
        draw.delay(job_id)


def send(job_id: int) -> None:
    """Send a job to a worker; if the broker is unavailable, beat sends it later."""
    try:
        draw.delay(job_id)
    except (OperationalError, OSError) as error:
        logger.warning("pictures of job %s wait until the broker is available: %s", job_id, error)
