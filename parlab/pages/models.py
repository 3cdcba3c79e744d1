"""Preferences of users."""

from typing import Any

from django.conf import settings
from django.db import models


class Preference(models.Model):
    """A preference of a user, for example the hidden columns of a list."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="+")
    name = models.CharField(max_length=60)
    value: "models.JSONField[Any]" = models.JSONField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["user", "name"], name="preference_once")]

    def __str__(self) -> str:
        return f"{self.name} of {self.user}"
