from celery import shared_task

from . import services
from .models import Watch
from .triggers import repository_check


@shared_task(name="parlab.watch.refresh")
def refresh() -> None:
    for watch in Watch.objects.enabled().select_related("config__experiment", "created_by"):
        services.watch_advance(watch=watch)


@shared_task(name="parlab.watch.poll")
def poll() -> None:
    for watch in Watch.objects.enabled().exclude(repository="").select_related("config__experiment", "created_by"):
        repository_check(watch=watch)
