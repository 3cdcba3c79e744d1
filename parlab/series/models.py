from django.db import models


class SeriesChunk(models.Model):
    """Up to some thousand points of one metric of one attempt and rank, as three compressed columns."""

    attempt = models.ForeignKey("lab.Attempt", models.CASCADE, related_name="+")
    metric = models.CharField(max_length=80)
    rank = models.IntegerField(help_text="-1 for what belongs to the node.")
    position = models.BigIntegerField(help_text="Index of its first point within the series.")
    count = models.PositiveIntegerField()
    first_step = models.BigIntegerField()
    last_step = models.BigIntegerField()
    steps = models.BinaryField()
    times = models.BinaryField()
    values = models.BinaryField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["attempt", "metric", "rank", "position"], name="chunk_position_once")
        ]

    def __str__(self) -> str:
        return f"{self.metric}[{self.position}:{self.position + self.count}] of rank {self.rank}"


class LogChunk(models.Model):
    """A piece of an attempt's raw output as it was printed: the truth from which all else can be rebuilt."""

    attempt = models.ForeignKey("lab.Attempt", models.CASCADE, related_name="+")
    position = models.BigIntegerField(help_text="Byte offset of its first byte in the output.")
    size = models.PositiveIntegerField(help_text="Bytes when unpacked.")
    data = models.BinaryField(help_text="zstd")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["attempt", "position"], name="log_position_once")]

    def __str__(self) -> str:
        return f"bytes {self.position} to {self.position + self.size}"
