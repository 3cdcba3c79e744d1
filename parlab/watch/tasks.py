from celery import shared_task

from parlab.periodic import is_due

from . import services
from .health import sweeps_check
from .models import Watch
from .triggers import repository_check


@shared_task(name="parlab.watch.refresh")
def refresh() -> None:
    if not is_due("refresh-watches", 2.0):
        return
    if is_due("health-sweeps", 10.0):
        sweeps_check()
    for watch in Watch.objects.enabled().select_related("config__experiment", "created_by", "node", "peer"):
        services.watch_advance(watch=watch)


@shared_task(name="parlab.watch.poll")
def poll() -> None:
    for watch in Watch.objects.enabled().exclude(repository="").select_related("config__experiment", "created_by"):
        repository_check(watch=watch)
