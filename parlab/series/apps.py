from django.apps import AppConfig


class SeriesConfig(AppConfig):
    name = "parlab.series"
    verbose_name = "Series"
    default_auto_field = "django.db.models.BigAutoField"
