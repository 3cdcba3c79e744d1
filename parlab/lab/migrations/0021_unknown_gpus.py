from django.db import migrations, models
from django.db.models.fields.json import KT
from django.db.models.functions import Cast, Coalesce, NullIf


def _number(*path):
    return NullIf(Cast(KT("__".join(path)), models.FloatField()), models.Value(0.0))


GPUS = Coalesce(
    _number("launch", "world_size"),
    _number("resolved", "cluster", "gpus_per_node")
    * Coalesce(_number("resolved", "cluster", "nodes"), models.Value(1.0)),
    _number("resolved", "parallel", "tensor_parallel_size")
    * _number("resolved", "parallel", "pipeline_parallel_size")
    * _number("resolved", "parallel", "data_parallel_size"),
)


class Migration(migrations.Migration):
    """An unknown number of GPUs is NULL, not 1; generated columns cannot be altered, only made anew."""

    dependencies = [("lab", "0020_logged_models")]

    operations = [
        migrations.RemoveIndex("run", "run_facts"),
        migrations.RemoveField("run", "gpus"),
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
