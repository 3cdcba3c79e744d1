import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    # The migrations up to 0.1.0. `manage.py migrate` refuses a database that has only some of them.
    replaces = [
        ('tuner', '0001_studies'),
        ('tuner', '0002_autotuner'),
        ('tuner', '0003_past_runs'),
    ]

    dependencies = [
        ('lab', '0001_release_0_1'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name='Study',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('hand_tuned', models.BooleanField(default=True, help_text='Also increase the micro batch by itself, with all other axes at their first value, for comparison.')),
                ('strategy', models.CharField(choices=[('planned', 'Planned'), ('deepspeed', "DeepSpeed's order"), ('random', 'Random'), ('exhaustive', 'Exhaustive'), ('autotuner', "DeepSpeed's own autotuner")], default='planned', max_length=12)),
                ('objective', models.CharField(choices=[('throughput', 'Throughput (samples/s)'), ('latency', 'Latency (s per iteration)'), ('cost', 'Cost (device seconds per sample)')], default='throughput', max_length=12)),
                ('max_launches', models.PositiveIntegerField(default=20, help_text='Launches of the search, at most.')),
                ('past_runs', models.PositiveIntegerField(default=0, help_text='Earlier runs on such nodes that corrected the first predictions.')),
                ('state', models.CharField(choices=[('running', 'running'), ('paused', 'paused'), ('finished', 'finished'), ('failed', 'failed'), ('cancelled', 'cancelled')], default='running', max_length=12)),
                ('reason', models.TextField(blank=True, help_text='Why it stopped, or what it waits for.')),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('ended_at', models.DateTimeField(blank=True, null=True)),
                ('baseline', models.ForeignKey(blank=True, help_text='Configuration to compare the result with, like the Hugging Face Trainer without DeepSpeed.', null=True, on_delete=django.db.models.deletion.RESTRICT, related_name='studies_as_baseline', to='lab.config')),
                ('config', models.ForeignKey(help_text='Its sweep is the space.', on_delete=django.db.models.deletion.RESTRICT, related_name='studies', to='lab.config')),
                ('created_by', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('driver', models.ForeignKey(blank=True, help_text="Run of engine autotuning, where DeepSpeed's own autotuner searches.", null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='studies_as_driver', to='lab.run')),
            ],
            options={
                'verbose_name_plural': 'studies',
                'ordering': ['-created_at', '-pk'],
            },
        ),
        migrations.CreateModel(
            name='Trial',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('role', models.CharField(choices=[('search', 'search'), ('hand-tuned', 'hand-tuned'), ('baseline', 'baseline')], max_length=12)),
                ('number', models.PositiveIntegerField(help_text='Number within the study, in the order of the launches.')),
                ('key', models.CharField(help_text='Name of the setting, like z1_gas2_tmbspg8.', max_length=300)),
                ('tuning_space', models.CharField(max_length=80)),
                ('why', models.CharField(blank=True, max_length=300)),
                ('expected', models.FloatField(blank=True, help_text='Value of the objective that was predicted before the launch.', null=True)),
                ('reused', models.BooleanField(default=False, help_text='The run existed before the study needed it.')),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('run', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='trials', to='lab.run')),
                ('study', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='trials', to='tuner.study')),
            ],
            options={
                'ordering': ['study', 'number'],
            },
        ),
        migrations.AddIndex(
            model_name='study',
            index=models.Index(fields=['state'], name='study_state'),
        ),
        migrations.AddConstraint(
            model_name='trial',
            constraint=models.UniqueConstraint(fields=('study', 'role', 'run'), name='trial_run_once'),
        ),
        migrations.AddConstraint(
            model_name='trial',
            constraint=models.UniqueConstraint(fields=('study', 'number'), name='trial_number_once'),
        ),
    ]
