from django.apps import AppConfig


class FleetConfig(AppConfig):
    name = "parlab.fleet"
    verbose_name = "Fleet"
