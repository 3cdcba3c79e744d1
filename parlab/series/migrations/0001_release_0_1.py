import django.db.models.deletion
from django.db import migrations, models

from parlab.series import partitions

TABLES = ('series_serieschunk', 'series_serieslevel', 'series_logchunk', 'series_operationchunk')


def divide(apps, schema_editor):
    # PostgreSQL only; the tables are still empty.
    if schema_editor.connection.vendor == 'postgresql':
        for table in TABLES:
            partitions.divide(table)
        partitions.extend(TABLES)


class Migration(migrations.Migration):

    initial = True

    # The migrations up to 0.1.0. `manage.py migrate` refuses a database that has only some of them.
    replaces = [
        ('series', '0001_initial'),
        ('series', '0002_last_chunk'),
        ('series', '0003_operations'),
        ('series', '0004_tracking'),
        ('series', '0005_node_ranks'),
        ('series', '0006_levels'),
        ('series', '0007_rank_streams'),
        ('series', '0008_last_chunk_metric'),
        ('series', '0009_last_chunk_rank'),
        ('series', '0010_archives'),
        ('series', '0011_partitions'),
        ('series', '0012_last_level_rows'),
    ]

    dependencies = [
        ('lab', '0001_release_0_1'),
    ]

    operations = [
        migrations.CreateModel(
            name='SeriesArchive',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('url', models.CharField(blank=True, help_text='Of fsspec; empty: they were removed.', max_length=500)),
                ('parts', models.JSONField(default=list, help_text='Rows of `archive.Part`.')),
                ('points', models.BigIntegerField()),
                ('archived_at', models.DateTimeField(auto_now_add=True)),
                ('attempt', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='lab.attempt')),
            ],
        ),
        migrations.CreateModel(
            name='LogChunk',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('node_rank', models.PositiveIntegerField(default=0)),
                ('position', models.BigIntegerField(help_text='Byte offset of its first byte in the output of the node.')),
                ('size', models.PositiveIntegerField(help_text='Bytes when unpacked.')),
                ('data', models.BinaryField(help_text='zstd')),
                ('stamps', models.BinaryField(default=b'', help_text='Pairs (offset in the chunk, Unix time), as float64.')),
                ('streams', models.BinaryField(default=b'', help_text='Who printed it: see series.streams. Empty: the node.')),
                ('attempt', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='lab.attempt')),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('attempt', 'node_rank', 'position'), name='log_position_once')],
            },
        ),
        migrations.CreateModel(
            name='OperationChunk',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('step', models.BigIntegerField()),
                ('rank', models.IntegerField()),
                ('count', models.PositiveIntegerField()),
                ('kinds', models.BinaryField(help_text='Places in series.operations.KINDS.')),
                ('micro_batches', models.BinaryField()),
                ('begins', models.BinaryField(help_text='Microseconds since the step began.')),
                ('ends', models.BinaryField()),
                ('attempt', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='lab.attempt')),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('attempt', 'step', 'rank'), name='operations_once')],
            },
        ),
        migrations.CreateModel(
            name='SeriesChunk',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('metric', models.CharField(max_length=250)),
                ('rank', models.IntegerField(help_text='-1 - node rank for what belongs to a node.')),
                ('position', models.BigIntegerField(help_text='Index of its first point within the series.')),
                ('is_last', models.BooleanField(default=False, help_text='The last chunk of its series, which grows until it is full.')),
                ('count', models.PositiveIntegerField()),
                ('first_step', models.BigIntegerField()),
                ('last_step', models.BigIntegerField()),
                ('steps', models.BinaryField()),
                ('times', models.BinaryField()),
                ('values', models.BinaryField()),
                ('attempt', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='lab.attempt')),
            ],
            options={
                'indexes': [models.Index(condition=models.Q(('is_last', True)), fields=['attempt', 'metric', 'rank'], name='chunk_last_rank')],
                'constraints': [models.UniqueConstraint(fields=('attempt', 'metric', 'rank', 'position'), name='chunk_position_once')],
            },
        ),
        migrations.CreateModel(
            name='SeriesLevel',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('metric', models.CharField(max_length=250)),
                ('rank', models.IntegerField()),
                ('level', models.PositiveSmallIntegerField()),
                ('position', models.BigIntegerField(help_text='Index of the first point of its first block within the series.')),
                ('is_last', models.BooleanField(default=False, help_text='The last row of its level, which grows until it is full.')),
                ('blocks', models.PositiveIntegerField()),
                ('first_step', models.BigIntegerField()),
                ('last_step', models.BigIntegerField()),
                ('steps', models.BinaryField(help_text='Of the points that blocks keep.')),
                ('times', models.BinaryField()),
                ('values', models.BinaryField()),
                ('sizes', models.BinaryField(help_text='Number of points that each block keeps.')),
                ('means', models.BinaryField()),
                ('finite', models.BinaryField(help_text='Number of finite values of each block.')),
                ('first_steps', models.BinaryField()),
                ('last_steps', models.BinaryField()),
                ('attempt', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='lab.attempt')),
            ],
            options={
                'indexes': [models.Index(condition=models.Q(('is_last', True)), fields=['attempt', 'metric', 'rank', 'level'], name='level_last')],
                'constraints': [models.UniqueConstraint(fields=('attempt', 'metric', 'rank', 'level', 'position'), name='level_position_once')],
            },
        ),
        migrations.RunPython(divide, migrations.RunPython.noop),
    ]
