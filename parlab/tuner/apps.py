from django.apps import AppConfig


class TunerConfig(AppConfig):
    name = "parlab.tuner"
    verbose_name = "Tuner"
