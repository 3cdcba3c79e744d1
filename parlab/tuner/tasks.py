from celery import shared_task

from . import services
from .models import Study


@shared_task(name="parlab.tuner.advance")
def advance() -> None:
    for study in Study.objects.running():
        services.study_advance(study=study)
