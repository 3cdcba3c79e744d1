from django.apps import AppConfig


class IngestConfig(AppConfig):
    name = "parlab.ingest"
    verbose_name = "Ingest"
