"""Members of attempts: the columns of Attempt that belong to one node move to the member with node rank 0."""

import django.db.models.deletion
import django.utils.timezone
from django.db import migrations, models

_BATCH = 500


def create_members(apps, schema_editor):
    attempts = apps.get_model('lab', 'Attempt').objects
    member = apps.get_model('lab', 'Member')
    rows = attempts.exclude(node=None, committed=0).exclude(state='queued').order_by('pk')
    fields = ('node_id', 'state', 'committed', 'lease_expires_at', 'dispatched_at', 'started_at', 'ended_at', 'exit_code', 'reason', 'traceback', 'environment')
    batch = []
    for row in rows.values('pk', *fields).iterator(_BATCH):
        assigned_at = row['dispatched_at'] or row['started_at'] or django.utils.timezone.now()
        batch.append(member(attempt_id=row.pop('pk'), assigned_at=assigned_at, **row))
        if len(batch) == _BATCH:
            member.objects.bulk_create(batch)
            batch = []
    member.objects.bulk_create(batch)


def restore_columns(apps, schema_editor):
    attempts = apps.get_model('lab', 'Attempt').objects
    members = apps.get_model('lab', 'Member').objects.filter(node_rank=0)
    for row in members.values('attempt_id', 'node_id', 'committed', 'lease_expires_at', 'dispatched_at').iterator(_BATCH):
        attempts.filter(pk=row.pop('attempt_id')).update(**row)


class Migration(migrations.Migration):

    dependencies = [
        ('lab', '0014_streams'),
    ]

    operations = [
        migrations.CreateModel(
            name='Member',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('node_rank', models.PositiveIntegerField(default=0, help_text='0 to number of nodes - 1.')),
                ('state', models.CharField(choices=[('dispatched', 'Dispatched'), ('prepared', 'Prepared'), ('running', 'Running'), ('finished', 'Finished'), ('oom', 'Oom'), ('failed', 'Failed'), ('cancelled', 'Cancelled'), ('lost', 'Lost')], default='dispatched', max_length=12)),
                ('committed', models.BigIntegerField(default=0, help_text='Spool position up to which batches are stored.')),
                ('lease_expires_at', models.DateTimeField(blank=True, null=True)),
                ('assigned_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('dispatched_at', models.DateTimeField(blank=True, help_text='Time at which the last order was sent.', null=True)),
                ('prepared_at', models.DateTimeField(blank=True, null=True)),
                ('started_at', models.DateTimeField(blank=True, null=True)),
                ('ended_at', models.DateTimeField(blank=True, null=True)),
                ('exit_code', models.IntegerField(blank=True, null=True)),
                ('reason', models.TextField(blank=True)),
                ('traceback', models.TextField(blank=True)),
                ('environment', models.JSONField(blank=True, default=dict)),
                ('rendezvous', models.JSONField(blank=True, default=dict)),
                ('clock_offset_s', models.FloatField(default=0.0, help_text="Clock of the node minus that of the server's Redis.")),
                ('first_failed_rank', models.PositiveIntegerField(blank=True, null=True)),
                ('is_consequence', models.BooleanField(default=False, help_text='It ended because another member had ended.')),
                ('attempt', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='members', to='lab.attempt')),
                ('node', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='members', to='lab.node')),
            ],
            options={
                'ordering': ['attempt', 'node_rank'],
                'indexes': [models.Index(fields=['state', 'lease_expires_at'], name='member_lease')],
                'constraints': [models.UniqueConstraint(fields=('attempt', 'node_rank'), name='member_node_rank_once')],
            },
        ),
        migrations.RunPython(create_members, restore_columns),
    ]
