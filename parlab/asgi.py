"""The ASGI application."""

import os

from django.conf import settings
from django.core.asgi import get_asgi_application

from parlab.limits import BodyLimit

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "parlab.settings")

application = BodyLimit(
    get_asgi_application(),
    upload_bytes=settings.UPLOAD_LIMIT_MIB * 2**20,
    uploads=("/import/", "/api/imports/"),
    upload_prefixes=("/api/2.0/mlflow-artifacts/", "/ajax-api/2.0/mlflow-artifacts/"),
)
