from celery import shared_task

from parlab.periodic import is_due

from . import services
from .models import Study


@shared_task(name="parlab.tuner.advance")
def advance() -> None:
    if is_due("tune", 1.0):
        for study in Study.objects.running():
            services.study_advance(study=study)
