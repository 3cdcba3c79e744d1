from typing import Any, NoReturn

from django.db import models


class StoredFileQuerySet(models.QuerySet["StoredFile"]):
    def update(self, **kwargs: Any) -> NoReturn:
        raise TypeError("stored files never change; store another one")


class StoredFile(models.Model):
    """A picture or a document that parlab made or a person gave: named by its content, kept once, never changed."""

    sha256 = models.CharField(max_length=64, unique=True, editable=False)
    media_type = models.CharField(max_length=40)
    size = models.PositiveIntegerField(help_text="Bytes.")
    width = models.PositiveIntegerField(default=0, help_text="Pixels; 0 of what is no picture.")
    height = models.PositiveIntegerField(default=0)
    data = models.BinaryField()
    created_at = models.DateTimeField(auto_now_add=True)

    objects = StoredFileQuerySet.as_manager()

    def __str__(self) -> str:
        return f"{self.media_type} {self.sha256[:12]}"
