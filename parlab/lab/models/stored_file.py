from typing import Any, NoReturn

from django.db import models


class StoredFileQuerySet(models.QuerySet["StoredFile"]):
    def update(self, **kwargs: Any) -> NoReturn:
        raise TypeError("stored files are immutable; store another one")


class StoredFile(models.Model):
    """A generated or uploaded picture or document: addressed by its SHA-256, stored once, immutable."""

    sha256 = models.CharField(max_length=64, unique=True, editable=False)
    media_type = models.CharField(max_length=40)
    size = models.PositiveIntegerField(help_text="In bytes.")
    width = models.PositiveIntegerField(default=0, help_text="In pixels; 0 if the file is not a picture.")
    height = models.PositiveIntegerField(default=0)
    data = models.BinaryField()
    created_at = models.DateTimeField(auto_now_add=True)

    objects = StoredFileQuerySet.as_manager()

    def __str__(self) -> str:
        return f"{self.media_type} {self.sha256[:12]}"
