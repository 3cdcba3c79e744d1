from typing import Any

from django.conf import settings
from django.db import models

from parlab.lab.models.access.viewer import Visible

from .experiment import Experiment
from .log_format import LogFormat


class Source(models.Model):
    """An imported file: its document, as read by a reader, and its original bytes.

    Runs, series, tables and findings can be rebuilt from the bytes.
    """

    PROJECT = "experiment__project"

    experiment = models.ForeignKey(Experiment, models.CASCADE, related_name="sources")
    name = models.CharField(max_length=200, help_text="For display only; parlab never opens a file of this name.")
    format = models.CharField(max_length=80)
    wanted_format = models.CharField(max_length=80, blank=True, help_text="The format that the user selected, if any.")
    log_format = models.ForeignKey(
        LogFormat, models.PROTECT, null=True, blank=True, related_name="sources", help_text="The learnt format, if any."
    )
    sha256 = models.CharField(max_length=64, editable=False)
    size = models.BigIntegerField(help_text="Bytes of the file.")
    version = models.PositiveIntegerField(
        default=1, editable=False, help_text="1; higher if an earlier file of this name begins differently."
    )
    continued_at = models.DateTimeField(
        null=True, blank=True, editable=False, help_text="When the file was last imported again after it had grown."
    )
    document: "models.JSONField[dict[str, Any]]" = models.JSONField(
        default=dict, help_text="A formats.schema.Document: segments, tables, figures, images, configs, unread."
    )
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    objects = Visible()

    class Meta:
        ordering = ["experiment", "pk"]
        constraints = [models.UniqueConstraint(fields=["experiment", "sha256"], name="source_once")]

    def __str__(self) -> str:
        return self.name


class SourceChunk(models.Model):
    """A chunk of the original bytes of an imported file."""

    # The unique constraint below starts with the source, so a second index would be redundant.
    source = models.ForeignKey(Source, models.CASCADE, related_name="chunks", db_index=False)
    position = models.BigIntegerField(help_text="Byte offset of its first byte in the file.")
    size = models.PositiveIntegerField(help_text="Uncompressed size in bytes.")
    data = models.BinaryField(help_text="Compressed with zstd.")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["source", "position"], name="source_position_once")]

    def __str__(self) -> str:
        return f"bytes {self.position} to {self.position + self.size}"


class Picture(models.Model):
    """A picture that a document refers to, imported together with it."""

    PROJECT = "source__experiment__project"

    source = models.ForeignKey(Source, models.CASCADE, related_name="pictures")
    reference = models.CharField(max_length=300, help_text="The name that the document uses.")
    media_type = models.CharField(max_length=40)
    sha256 = models.CharField(max_length=64, editable=False)
    data = models.BinaryField()

    objects = Visible()

    class Meta:
        ordering = ["source", "pk"]
        constraints = [models.UniqueConstraint(fields=["source", "reference"], name="picture_once")]

    def __str__(self) -> str:
        return self.reference
