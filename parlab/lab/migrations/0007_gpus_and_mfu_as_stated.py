from django.db import migrations, models
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Cast, Coalesce, NullIf


def _number(*path):
    """A number of a JSON column, as `lab.models.run` reads it."""
    text = path[0]
    for key in path[1:]:
        text = KeyTextTransform(key, text)
    return NullIf(Cast(text, models.FloatField()), models.Value(0.0))


def _size(name):
    return Coalesce(_number("resolved", "parallel", name), models.Value(1.0))


MFU = Coalesce(_number("summary", "mfu"), _number("summary", "mfu_pct") / models.Value(100.0))
GPUS = Coalesce(
    _number("launch", "world_size"),
    _number("resolved", "cluster", "gpus_per_node")
    * Coalesce(_number("resolved", "cluster", "nodes"), models.Value(1.0)),
    _size("tensor_parallel_size") * _size("pipeline_parallel_size") * _size("data_parallel_size"),
)


class Migration(migrations.Migration):
    """What an imported run's file says of its GPUs and its MFU counts; generated columns cannot be altered, only made anew."""

    dependencies = [("lab", "0006_pictures")]

    operations = [
        migrations.RemoveIndex("run", "run_facts"),
        migrations.RemoveField("run", "gpus"),
        migrations.RemoveField("run", "mfu"),
        migrations.AddField(
            "run",
            "mfu",
            models.GeneratedField(db_persist=True, expression=MFU, output_field=models.FloatField(null=True)),
        ),
        migrations.AddField(
            "run",
            "gpus",
            models.GeneratedField(db_persist=True, expression=GPUS, output_field=models.FloatField(null=True)),
        ),
        migrations.AddIndex(
            "run",
            models.Index(fields=['experiment', 'state', 'origin', 'engine', 'schedule', 'precision', 'gpus', 'tensor_parallel_size', 'pipeline_parallel_size', 'data_parallel_size', 'micro_batch_size', 'global_batch_size', 'samples_per_s', 'tokens_per_s', 'step_time_s', 'ms_per_sample', 'memory_max_bytes', 'mfu', 'queued_at', 'started_at', 'ended_at'], name='run_facts'),
        ),
    ]
