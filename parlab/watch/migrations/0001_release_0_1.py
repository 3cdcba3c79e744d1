import django.db.models.deletion
import django.utils.timezone
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    # The migrations up to 0.1.0. `manage.py migrate` refuses a database that has only some of them.
    replaces = [
        ('watch', '0001_watches'),
        ('watch', '0002_look_again'),
        ('watch', '0003_causes'),
        ('watch', '0004_health_and_locks'),
    ]

    dependencies = [
        ('lab', '0001_release_0_1'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name='Alert',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('kind', models.CharField(help_text='step, slope or node.', max_length=8)),
                ('node', models.CharField(blank=True, max_length=200)),
                ('is_worse', models.BooleanField(default=True)),
                ('parts', models.JSONField(default=list, help_text='Per measure and point: size with interval.')),
                ('state', models.CharField(choices=[('new', 'new'), ('acknowledged', 'acknowledged'), ('fixed', 'fixed'), ('expected', 'expected'), ('wrong', 'wrong')], default='new', max_length=12)),
                ('reason', models.TextField(blank=True)),
                ('changed_at', models.DateTimeField(blank=True, null=True)),
                ('cause', models.CharField(blank=True, help_text='What changed: a commit, software, or a node.', max_length=300)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('changed_by', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('leader', models.ForeignKey(blank=True, help_text='The first alert with the same cause, of any watch; only that one is announced.', null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='followers', to='watch.alert')),
            ],
            options={
                'ordering': ['-created_at', '-pk'],
            },
        ),
        migrations.CreateModel(
            name='Bisect',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('series', models.CharField(blank=True, max_length=300)),
                ('measure', models.CharField(max_length=200)),
                ('good', models.CharField(max_length=64)),
                ('bad', models.CharField(max_length=64)),
                ('good_lock', models.TextField(blank=True, help_text='Lock file before the change; empty: it searches commits.')),
                ('bad_lock', models.TextField(blank=True)),
                ('commit', models.CharField(blank=True, help_text='Commit at which locks are run.', max_length=64)),
                ('culprit', models.CharField(blank=True, max_length=64)),
                ('state', models.CharField(choices=[('running', 'running'), ('paused', 'paused'), ('done', 'done'), ('failed', 'failed')], default='running', max_length=8)),
                ('reason', models.TextField(blank=True)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('ended_at', models.DateTimeField(blank=True, null=True)),
                ('alert', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='bisects', to='watch.alert')),
                ('created_by', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'ordering': ['-pk'],
            },
        ),
        migrations.CreateModel(
            name='Result',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('attempt_number', models.PositiveSmallIntegerField(blank=True, null=True)),
                ('line', models.CharField(blank=True, help_text='Identity within an imported history.', max_length=200)),
                ('series', models.CharField(blank=True, help_text='The point of a sweep; empty without a sweep.', max_length=300)),
                ('at', models.DateTimeField()),
                ('position', models.PositiveIntegerField(default=0, help_text='Of its commit; 0 without a repository.')),
                ('commit', models.CharField(blank=True, max_length=64)),
                ('lock', models.CharField(blank=True, help_text='Digest of the pins that a bisection installed; not part of any series.', max_length=64)),
                ('node', models.CharField(blank=True, max_length=200)),
                ('hardware', models.CharField(blank=True, help_text='Digest of the processor and GPUs: a node may be replaced under its name.', max_length=16)),
                ('environment', models.JSONField(blank=True, default=dict)),
                ('values', models.JSONField(blank=True, default=dict)),
                ('run', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='watch_results', to='lab.run')),
            ],
            options={
                'ordering': ['position', 'at', 'pk'],
            },
        ),
        migrations.AddField(
            model_name='alert',
            name='first_bad',
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='watch.result'),
        ),
        migrations.AddField(
            model_name='alert',
            name='fixed_by',
            field=models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='watch.result'),
        ),
        migrations.AddField(
            model_name='alert',
            name='last_good',
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='watch.result'),
        ),
        migrations.CreateModel(
            name='Watch',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=120, unique=True)),
                ('key', models.CharField(help_text='Results of other runs with this key belong to the watch as well.', max_length=200, unique=True)),
                ('schedule', models.CharField(blank=True, help_text='Cron text, in UTC: 30 2 * * 1-5.', max_length=100)),
                ('next_at', models.DateTimeField(blank=True, null=True)),
                ('repository', models.CharField(blank=True, help_text='Path or address of a git repository.', max_length=500)),
                ('branch', models.CharField(blank=True, max_length=200)),
                ('on_node_change', models.BooleanField(default=False, help_text='Run again when the software of a node changes.')),
                ('software', models.JSONField(blank=True, default=dict, help_text='The software of each node when it was last compared.')),
                ('repeats', models.PositiveSmallIntegerField(default=1, help_text='Runs of each point per occasion.')),
                ('max_extra', models.PositiveSmallIntegerField(default=6, help_text='Further runs that it may order by itself while a change is not certain.')),
                ('is_enabled', models.BooleanField(default=True)),
                ('problem', models.TextField(blank=True, help_text='Why its last occasion could not be used.')),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('checked_at', models.DateTimeField(blank=True, help_text='When it last looked for results; empty: the next look reads all runs.', null=True)),
                ('config', models.ForeignKey(blank=True, help_text='Configuration or sweep that is run again; empty: the watch only collects results.', null=True, on_delete=django.db.models.deletion.CASCADE, related_name='watches', to='lab.config')),
                ('created_by', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('node', models.ForeignKey(blank=True, help_text='The node whose health sweeps it follows; empty: it follows a configuration.', null=True, on_delete=django.db.models.deletion.CASCADE, related_name='health_watches', to='lab.node')),
                ('peer', models.ForeignKey(blank=True, help_text='The node at the other end of a link between nodes.', null=True, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='lab.node')),
            ],
            options={
                'verbose_name_plural': 'watches',
                'ordering': ['name'],
            },
        ),
        migrations.AddField(
            model_name='result',
            name='watch',
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='results', to='watch.watch'),
        ),
        migrations.CreateModel(
            name='Order',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('commit', models.CharField(blank=True, max_length=64)),
                ('lock', models.TextField(blank=True, help_text='Pins to install, of a bisection between two lock files.')),
                ('count', models.PositiveSmallIntegerField(default=1, help_text='Runs of each point.')),
                ('reason', models.CharField(max_length=300)),
                ('suspect', models.CharField(blank=True, help_text='The suspicion that it is to settle.', max_length=64)),
                ('targets', models.JSONField(blank=True, default=dict, help_text='Attempts that each run has in the end, by its id.')),
                ('state', models.CharField(choices=[('open', 'open'), ('done', 'done'), ('failed', 'failed')], default='open', max_length=8)),
                ('problem', models.TextField(blank=True)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('ended_at', models.DateTimeField(blank=True, null=True)),
                ('watch', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='orders', to='watch.watch')),
            ],
            options={
                'ordering': ['-pk'],
            },
        ),
        migrations.CreateModel(
            name='Commit',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('sha', models.CharField(max_length=64)),
                ('position', models.PositiveIntegerField()),
                ('subject', models.CharField(max_length=300)),
                ('author', models.CharField(blank=True, max_length=200)),
                ('at', models.DateTimeField()),
                ('watch', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='commits', to='watch.watch')),
            ],
            options={
                'ordering': ['watch', 'position'],
            },
        ),
        migrations.AddField(
            model_name='alert',
            name='watch',
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='alerts', to='watch.watch'),
        ),
        migrations.CreateModel(
            name='Series',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('point', models.CharField(blank=True, max_length=300)),
                ('measure', models.CharField(max_length=200)),
                ('digest', models.CharField(blank=True, help_text='Of the results that the state contains.', max_length=64)),
                ('count', models.PositiveIntegerField(default=0)),
                ('state', models.JSONField(blank=True, default=dict)),
                ('changes', models.JSONField(blank=True, default=list)),
                ('suspicion', models.JSONField(blank=True, default=dict)),
                ('notes', models.JSONField(blank=True, default=list)),
                ('watch', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='series', to='watch.watch')),
            ],
            options={
                'verbose_name_plural': 'series',
                'ordering': ['watch', 'point', 'measure'],
                'constraints': [models.UniqueConstraint(fields=('watch', 'point', 'measure'), name='watch_series_once')],
            },
        ),
        migrations.AddIndex(
            model_name='result',
            index=models.Index(fields=['watch', 'series', 'position', 'at'], name='watch_results_in_order'),
        ),
        migrations.AddConstraint(
            model_name='result',
            constraint=models.UniqueConstraint(fields=('watch', 'run', 'attempt_number'), name='watch_result_once'),
        ),
        migrations.AddConstraint(
            model_name='result',
            constraint=models.UniqueConstraint(condition=models.Q(('line', ''), _negated=True), fields=('watch', 'line'), name='watch_line_once'),
        ),
        migrations.AddIndex(
            model_name='order',
            index=models.Index(fields=['watch', 'state'], name='watch_orders'),
        ),
        migrations.AddConstraint(
            model_name='commit',
            constraint=models.UniqueConstraint(fields=('watch', 'sha'), name='commit_once'),
        ),
        migrations.AddConstraint(
            model_name='commit',
            constraint=models.UniqueConstraint(fields=('watch', 'position'), name='commit_position_once'),
        ),
    ]
