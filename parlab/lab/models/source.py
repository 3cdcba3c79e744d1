from typing import Any

from django.conf import settings
from django.db import models

from .experiment import Experiment


class Source(models.Model):
    """A file that was imported: what it holds as the readers say, and its bytes as they were.

    The bytes are the truth: runs, series, tables and findings can be built from them again.
    """

    experiment = models.ForeignKey(Experiment, models.CASCADE, related_name="sources")
    name = models.CharField(max_length=200, help_text="For display only; nothing opens a file of this name.")
    format = models.CharField(max_length=40)
    wanted_format = models.CharField(max_length=40, blank=True, help_text="The format that was asked for, if any.")
    sha256 = models.CharField(max_length=64, editable=False)
    size = models.BigIntegerField(help_text="Bytes of the file.")
    document: "models.JSONField[dict[str, Any]]" = models.JSONField(
        default=dict, help_text="A formats.schema.Document: segments, tables, figures, images, configs, unread."
    )
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["experiment", "pk"]
        constraints = [models.UniqueConstraint(fields=["experiment", "sha256"], name="source_once")]

    def __str__(self) -> str:
        return self.name


class SourceChunk(models.Model):
    """A piece of an imported file, as it was."""

    # The unique constraint below starts with the source: a second index would only take space.
    source = models.ForeignKey(Source, models.CASCADE, related_name="chunks", db_index=False)
    position = models.BigIntegerField(help_text="Byte offset of its first byte in the file.")
    size = models.PositiveIntegerField(help_text="Bytes when unpacked.")
    data = models.BinaryField(help_text="zstd")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["source", "position"], name="source_position_once")]

    def __str__(self) -> str:
        return f"bytes {self.position} to {self.position + self.size}"


class Picture(models.Model):
    """A picture that a document refers to and that lay beside it."""

    source = models.ForeignKey(Source, models.CASCADE, related_name="pictures")
    reference = models.CharField(max_length=300, help_text="As the document names it.")
    media_type = models.CharField(max_length=40)
    sha256 = models.CharField(max_length=64, editable=False)
    data = models.BinaryField()

    class Meta:
        ordering = ["source", "pk"]
        constraints = [models.UniqueConstraint(fields=["source", "reference"], name="picture_once")]

    def __str__(self) -> str:
        return self.reference
