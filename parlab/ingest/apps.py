from django.apps import AppConfig

from parlab.ingest.files.confined_rst import parse_in_child


class IngestConfig(AppConfig):
    name = "parlab.ingest"
    verbose_name = "Ingest"

    def ready(self) -> None:
        """Parse documents of others with limits."""
        parse_in_child()
