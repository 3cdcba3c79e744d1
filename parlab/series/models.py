from django.db import models


class SeriesChunk(models.Model):
    """Up to CHUNK_POINTS points of one metric of one attempt and rank, as three compressed columns."""

    # No index: the unique constraint below starts with the attempt.
    attempt = models.ForeignKey("lab.Attempt", models.CASCADE, related_name="+", db_index=False)
    metric = models.CharField(max_length=250)
    rank = models.IntegerField(help_text="-1 - node rank for what belongs to a node.")
    position = models.BigIntegerField(help_text="Index of its first point within the series.")
    is_last = models.BooleanField(
        default=False, help_text="The last chunk of its series, which grows until it is full."
    )
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
        indexes = [
            models.Index(fields=["attempt", "metric", "rank"], name="chunk_last_rank", condition=models.Q(is_last=True))
        ]

    def __str__(self) -> str:
        return f"{self.metric}[{self.position}:{self.position + self.count}] of rank {self.rank}"


class SeriesLevel(models.Model):
    """Consecutive blocks of points of a series at one level of its pyramid; see `levels`."""

    # No index: the unique constraint below starts with the attempt.
    attempt = models.ForeignKey("lab.Attempt", models.CASCADE, related_name="+", db_index=False)
    metric = models.CharField(max_length=250)
    rank = models.IntegerField()
    level = models.PositiveSmallIntegerField()
    position = models.BigIntegerField(help_text="Index of the first point of its first block within the series.")
    is_last = models.BooleanField(default=False, help_text="The last row of its level, which grows until it is full.")
    blocks = models.PositiveIntegerField()
    first_step = models.BigIntegerField()
    last_step = models.BigIntegerField()
    steps = models.BinaryField(help_text="Of the points that blocks keep.")
    times = models.BinaryField()
    values = models.BinaryField()
    sizes = models.BinaryField(help_text="Number of points that each block keeps.")
    means = models.BinaryField()
    finite = models.BinaryField(help_text="Number of finite values of each block.")
    first_steps = models.BinaryField()
    last_steps = models.BinaryField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["attempt", "metric", "rank", "level", "position"], name="level_position_once"
            )
        ]
        indexes = [
            models.Index(
                fields=["attempt", "metric", "rank", "level"], name="level_last", condition=models.Q(is_last=True)
            )
        ]

    def __str__(self) -> str:
        return f"level {self.level} of {self.metric} of rank {self.rank} from {self.position}"


class SeriesArchive(models.Model):
    """Where the first chunks of the series of an attempt are; see `archive`."""

    attempt = models.OneToOneField("lab.Attempt", models.CASCADE, related_name="+")
    url = models.CharField(max_length=500, blank=True, help_text="Of fsspec; empty: they were removed.")
    parts = models.JSONField(default=list, help_text="Rows of `archive.Part`.")
    points = models.BigIntegerField()
    archived_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"{self.points} points of attempt {self.attempt_id}{f' in {self.url}' if self.url else ', removed'}"


class LogChunk(models.Model):
    """A piece of the raw output of one member of an attempt, from which all other data can be rebuilt."""

    # No index: the unique constraint below starts with the attempt.
    attempt = models.ForeignKey("lab.Attempt", models.CASCADE, related_name="+", db_index=False)
    node_rank = models.PositiveIntegerField(default=0)
    position = models.BigIntegerField(help_text="Byte offset of its first byte in the output of the node.")
    size = models.PositiveIntegerField(help_text="Bytes when unpacked.")
    data = models.BinaryField(help_text="zstd")
    stamps = models.BinaryField(default=b"", help_text="Pairs (offset in the chunk, Unix time), as float64.")
    streams = models.BinaryField(default=b"", help_text="Who printed it: see series.streams. Empty: the node.")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["attempt", "node_rank", "position"], name="log_position_once")]

    def __str__(self) -> str:
        return f"bytes {self.position} to {self.position + self.size}"


class OperationChunk(models.Model):
    """The operations of one rank in one step, as four compressed columns."""

    # No index: the unique constraint below starts with the attempt.
    attempt = models.ForeignKey("lab.Attempt", models.CASCADE, related_name="+", db_index=False)
    step = models.BigIntegerField()
    rank = models.IntegerField()
    count = models.PositiveIntegerField()
    kinds = models.BinaryField(help_text="Places in series.operations.KINDS.")
    micro_batches = models.BinaryField()
    begins = models.BinaryField(help_text="Microseconds since the step began.")
    ends = models.BinaryField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["attempt", "step", "rank"], name="operations_once")]

    def __str__(self) -> str:
        return f"{self.count} operations of rank {self.rank} in step {self.step}"
