"""The ASGI application."""

import os
from importlib import import_module

from django.conf import settings
from django.core.asgi import get_asgi_application

from parlab.limits import BodyLimit
from parlab.proxies import TrustedProxies
from parlab.request_times import RequestTimes
from parlab.slow_requests import BodyTime, files_allow

os.umask(0o077)  # as in manage.py
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "parlab.settings")
os.environ.setdefault("PARLAB_DATABASE_POOL", "40")
django_application = get_asgi_application()

from parlab.newer_database import KnownDatabase  # noqa: E402
from parlab.tracking.fast_requests import ReportRoad  # noqa: E402  # its models need the applications

# Django imports the pages when it first needs an address: seconds, which must not fall into a transaction.
import_module(settings.ROOT_URLCONF)

files_allow()
served = TrustedProxies(
    KnownDatabase(ReportRoad(django_application)),
    settings.TRUSTED_PROXIES,
    user_header=settings.PROXY_USER_HEADER,
    groups_header=settings.PROXY_GROUPS_HEADER,
)
application = BodyLimit(
    RequestTimes(BodyTime(served)),
    upload_bytes=settings.UPLOAD_LIMIT_MIB * 2**20,
    uploads=("/import/", "/api/imports/"),
    upload_prefixes=(
        *("/api/artifacts/", "/api/2.0/mlflow-artifacts/", "/ajax-api/2.0/mlflow-artifacts/"),
        "/wandb/files/",
    ),
)
