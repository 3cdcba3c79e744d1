from django.apps import AppConfig


class WatchConfig(AppConfig):
    name = "parlab.watch"
    verbose_name = "Watches"
