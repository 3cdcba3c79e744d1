from django.apps import AppConfig


class NotifyConfig(AppConfig):
    name = "parlab.notify"
    verbose_name = "Notifications"
