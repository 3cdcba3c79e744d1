from django.apps import AppConfig


class TrackingConfig(AppConfig):
    name = "parlab.tracking"
    verbose_name = "Tracking"
