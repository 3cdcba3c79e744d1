"""The server's Celery application; settings.py contains its settings."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "parlab.settings")

app = Celery("parlab")
app.config_from_object("django.conf:settings", namespace="CELERY")
