import logging

from celery import shared_task

from . import services
from .models import Watch

logger = logging.getLogger(__name__)


@shared_task(name="parlab.watch.refresh")
def refresh() -> None:
    for watch in Watch.objects.enabled().select_related("config__experiment"):
        services.watch_refresh(watch=watch)
