from django.apps import AppConfig


class LabConfig(AppConfig):
    name = "parlab.lab"
    verbose_name = "Lab"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from parlab import checks  # noqa: F401  registers the system checks
