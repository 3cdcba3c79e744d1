import django.core.validators
import django.db.models.deletion
import django.db.models.expressions
import django.db.models.fields.json
import django.db.models.functions.comparison
import django.utils.timezone
import parlab.lab.models.event
import uuid
from django.conf import settings
from django.db import migrations, models


def fill_catalogue(apps, schema_editor):
    # Imported late, so that a later move of the planner's modules affects only this migration.
    from parlab.planner.job.hardware import devices

    catalogue = apps.get_model('lab', 'Device')
    for gpu in devices():
        catalogue.objects.get_or_create(
            name=gpu.name,
            defaults={
                'memory_gib': gpu.memory_bytes / 2**30,
                'memory_bandwidth_gb_s': gpu.memory_bandwidth / 1e9,
                'peak_tflops': {name: round(flops / 1e12, 6) for name, flops in gpu.peak_flops.items()},
                'matmul_ceiling_tflops': gpu.matmul_ceiling_flops and gpu.matmul_ceiling_flops / 1e12,
                'source': gpu.source,
            },
        )


class Migration(migrations.Migration):

    initial = True

    # The migrations up to 0.1.0. `manage.py migrate` refuses a database that has only some of them.
    replaces = [
        ('lab', '0001_initial'),
        ('lab', '0002_imports_and_findings'),
        ('lab', '0003_experiment_with_runs'),
        ('lab', '0004_filters_tags_archive'),
        ('lab', '0005_reports'),
        ('lab', '0006_pictures'),
        ('lab', '0007_gpus_and_mfu_as_stated'),
        ('lab', '0008_devices'),
        ('lab', '0009_api_tokens'),
        ('lab', '0010_help_texts'),
        ('lab', '0011_tracking'),
        ('lab', '0012_source_versions'),
        ('lab', '0013_more_devices'),
        ('lab', '0014_streams'),
        ('lab', '0015_members'),
        ('lab', '0016_member_columns'),
        ('lab', '0017_name_meanings'),
        ('lab', '0018_events'),
        ('lab', '0019_log_formats'),
        ('lab', '0020_logged_models'),
        ('lab', '0021_unknown_gpus'),
        ('lab', '0022_hidden_runs'),
        ('lab', '0023_refused_messages'),
        ('lab', '0024_watches'),
        ('lab', '0025_rank_traces'),
        ('lab', '0026_advice_trials'),
        ('lab', '0027_node_keys'),
        ('lab', '0028_login_failures'),
        ('lab', '0029_numbers_at'),
        ('lab', '0030_token_scopes'),
        ('lab', '0031_audit'),
        ('lab', '0032_repeats'),
        ('lab', '0033_notes_stars_comments'),
        ('lab', '0034_traces_of_engines'),
        ('lab', '0035_left_out_nodes'),
        ('lab', '0036_run_ends'),
        ('lab', '0037_token_parents'),
    ]

    dependencies = [
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name='Attempt',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('number', models.PositiveSmallIntegerField()),
                ('state', models.CharField(choices=[('queued', 'queued'), ('dispatched', 'dispatched'), ('running', 'running'), ('finished', 'finished'), ('oom', 'oom'), ('failed', 'failed'), ('cancelled', 'cancelled'), ('lost', 'lost')], default='queued', max_length=12)),
                ('last_step', models.IntegerField(blank=True, null=True)),
                ('started_at', models.DateTimeField(blank=True, null=True)),
                ('ended_at', models.DateTimeField(blank=True, null=True)),
                ('exit_code', models.IntegerField(blank=True, help_text='Of the first cause of its end.', null=True)),
                ('reason', models.TextField(blank=True)),
                ('traceback', models.TextField(blank=True)),
                ('command', models.JSONField(blank=True, default=list)),
                ('environment', models.JSONField(blank=True, default=dict)),
                ('summary', models.JSONField(blank=True, default=dict)),
                ('numbers_at', models.DateTimeField(db_index=True, default=django.utils.timezone.now, editable=False, help_text='When its summary was last stored.')),
            ],
            options={
                'ordering': ['run', 'number'],
            },
        ),
        migrations.CreateModel(
            name='Device',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(help_text='A name that starts with CPU denotes a CPU.', max_length=80, unique=True)),
                ('memory_gib', models.FloatField(validators=[django.core.validators.MinValueValidator(0.001)], verbose_name='memory (GiB)')),
                ('memory_bandwidth_gb_s', models.FloatField(validators=[django.core.validators.MinValueValidator(0.001)], verbose_name='memory bandwidth (GB/s)')),
                ('peak_tflops', models.JSONField(help_text='Without sparsity, by precision (fp32, tf32, fp16, bf16, fp8): {"fp32": 19.5, "bf16": 312}.', verbose_name='peak (TFLOP/s)')),
                ('matmul_ceiling_tflops', models.FloatField(blank=True, help_text='Highest measured rate of large 16-bit matrix products. Leave empty if not measured.', null=True, validators=[django.core.validators.MinValueValidator(0.001)], verbose_name='matmul ceiling (TFLOP/s)')),
                ('link_gb_s', models.FloatField(blank=True, help_text='One direction, per device. Leave empty for the usual bandwidth of this kind of device.', null=True, validators=[django.core.validators.MinValueValidator(0.001)], verbose_name='link inside a node (GB/s)')),
                ('node_gbit_s', models.FloatField(blank=True, help_text='Sum over all network cards of a node. Leave empty for the usual bandwidth of such nodes.', null=True, validators=[django.core.validators.MinValueValidator(0.001)], verbose_name='network of a node (Gbit/s)')),
                ('price_per_hour', models.FloatField(blank=True, help_text='Per device, in any currency. The plan page uses it as the default.', null=True, validators=[django.core.validators.MinValueValidator(0.0)], verbose_name='price of an hour')),
                ('source', models.CharField(blank=True, help_text='Origin of these numbers, such as a data sheet.', max_length=200)),
            ],
            options={
                'ordering': ['name'],
            },
        ),
        migrations.CreateModel(
            name='Node',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=120, unique=True)),
                ('pool', models.CharField(default='default', max_length=63)),
                ('is_enabled', models.BooleanField(default=True, help_text='A disabled node finishes its runs but gets no new ones.')),
                ('left_out', models.CharField(blank=True, help_text='Why it gets only health sweeps; empty: it gets all runs.', max_length=300)),
                ('left_out_at', models.DateTimeField(blank=True, null=True)),
                ('slots', models.PositiveSmallIntegerField(default=1, help_text='Number of runs at a time.')),
                ('hardware', models.JSONField(blank=True, default=dict)),
                ('abilities', models.JSONField(blank=True, default=dict)),
                ('is_draining', models.BooleanField(default=False, help_text='Its daemon finishes its runs and takes no new ones.')),
                ('lease_s', models.FloatField(blank=True, help_text='Lease that its daemon asks for; empty: the default.', null=True)),
                ('clock', models.JSONField(blank=True, default=dict)),
                ('identity', models.CharField(blank=True, help_text='Host and state directory of its daemon.', max_length=300)),
                ('conflict', models.CharField(blank=True, help_text='Another daemon that uses the same name.', max_length=300)),
                ('conflict_at', models.DateTimeField(blank=True, null=True)),
                ('daemon_version', models.CharField(blank=True, max_length=40)),
                ('heartbeat_number', models.BigIntegerField(default=0, help_text='Number of the last heartbeat: numbers rise.')),
                ('last_heartbeat_at', models.DateTimeField(blank=True, null=True)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
            ],
            options={
                'ordering': ['name'],
            },
        ),
        migrations.CreateModel(
            name='StoredFile',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('sha256', models.CharField(editable=False, max_length=64, unique=True)),
                ('media_type', models.CharField(max_length=40)),
                ('size', models.PositiveIntegerField(help_text='In bytes.')),
                ('width', models.PositiveIntegerField(default=0, help_text='In pixels; 0 if the file is not a picture.')),
                ('height', models.PositiveIntegerField(default=0)),
                ('data', models.BinaryField()),
                ('created_at', models.DateTimeField(auto_now_add=True)),
            ],
        ),
        migrations.CreateModel(
            name='AuditEntry',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('at', models.DateTimeField(auto_now_add=True, db_index=True)),
                ('username', models.CharField(help_text='As it was then; it stays when the user is deleted.', max_length=150)),
                ('action', models.CharField(choices=[('login', 'logged in'), ('launch', 'launched'), ('cancel', 'cancelled'), ('change', 'changed'), ('share', 'shared'), ('delete', 'deleted'), ('access', 'changed access')], max_length=8)),
                ('route', models.CharField(help_text='Name of the address.', max_length=120)),
                ('method', models.CharField(max_length=8)),
                ('path', models.CharField(max_length=300)),
                ('status', models.PositiveSmallIntegerField()),
                ('token', models.CharField(blank=True, help_text='Name of the API token; empty: a session.', max_length=80)),
                ('address', models.CharField(max_length=64)),
                ('user', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'verbose_name_plural': 'audit entries',
                'ordering': ['-pk'],
            },
        ),
        migrations.CreateModel(
            name='Experiment',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=500, unique=True)),
                ('slug', models.SlugField(max_length=120, unique=True)),
                ('question', models.TextField(blank=True, help_text='The question to answer, in one or two sentences.')),
                ('notes', models.TextField(blank=True, help_text='Results and next steps.')),
                ('source', models.TextField(blank=True, help_text='Origin of results that were not measured by this installation.')),
                ('archived_at', models.DateTimeField(blank=True, editable=False, null=True)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('updated_at', models.DateTimeField(auto_now=True)),
                ('owner', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='experiments', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'ordering': ['-created_at'],
            },
        ),
        migrations.CreateModel(
            name='Config',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('version', models.PositiveIntegerField(editable=False)),
                ('data', models.JSONField(help_text='A RunConfig: the fields that all points of the sweep share.')),
                ('sweep', models.JSONField(blank=True, default=dict, help_text='Axes: dotted field name to list of values.')),
                ('digest', models.CharField(editable=False, max_length=64)),
                ('note', models.CharField(blank=True, help_text='The reason for this version.', max_length=300)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('created_by', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('experiment', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='configs', to='lab.experiment')),
            ],
            options={
                'ordering': ['experiment', '-version'],
            },
        ),
        migrations.CreateModel(
            name='ExperimentLabel',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('key', models.CharField(max_length=250)),
                ('value', models.TextField(blank=True)),
                ('experiment', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='labels', to='lab.experiment')),
            ],
            options={
                'ordering': ['key'],
            },
        ),
        migrations.CreateModel(
            name='Finding',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('rule', models.CharField(help_text='Name of the rule in docs/understand/findings.md.', max_length=80)),
                ('severity', models.CharField(choices=[('error', 'Error'), ('warning', 'Warning'), ('info', 'Info')], max_length=10)),
                ('message', models.TextField()),
                ('numbers', models.JSONField(default=dict)),
                ('where', models.JSONField(default=dict, help_text='A formats.schema.Place without its empty parts.')),
                ('where_digest', models.CharField(editable=False, max_length=64)),
                ('lines', models.JSONField(default=list, help_text='Lines of the source.')),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('acknowledged_at', models.DateTimeField(blank=True, null=True)),
                ('acknowledged_reason', models.TextField(blank=True)),
                ('acknowledged_by', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('experiment', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='findings', to='lab.experiment')),
            ],
            options={
                'ordering': ['experiment', 'pk'],
            },
        ),
        migrations.CreateModel(
            name='Comment',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('about', models.TextField(blank=True, help_text='The message of the finding when the comment was written.')),
                ('text', models.TextField(help_text='Markdown.', max_length=10000)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('edited_at', models.DateTimeField(blank=True, null=True)),
                ('author', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('experiment', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='comments', to='lab.experiment')),
                ('finding', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='comments', to='lab.finding')),
            ],
            options={
                'ordering': ['created_at', 'pk'],
            },
        ),
        migrations.CreateModel(
            name='LogFormat',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=60)),
                ('version', models.PositiveIntegerField(default=1, editable=False)),
                ('definition', models.JSONField(help_text='A formats.learnt.Learnt: what `python -m parlab.formats FILE --learn` writes.')),
                ('is_deleted', models.BooleanField(default=False, editable=False, help_text='Only kept for files read with it.')),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('created_by', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'ordering': ['name', '-version'],
            },
        ),
        migrations.CreateModel(
            name='LoginFailure',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('username', models.CharField(max_length=150)),
                ('address', models.CharField(max_length=64)),
                ('count', models.PositiveIntegerField(default=0)),
                ('last_at', models.DateTimeField(db_index=True)),
                ('blocked_until', models.DateTimeField(blank=True, null=True)),
            ],
            options={
                'ordering': ['-last_at'],
                'constraints': [models.UniqueConstraint(fields=('username', 'address'), name='login_failure_once')],
            },
        ),
        migrations.CreateModel(
            name='NameMeaning',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('kind', models.CharField(choices=[('metric', 'Metric'), ('setting', 'Setting')], max_length=8)),
                ('name', models.CharField(help_text='The name as scripts report it.', max_length=250)),
                ('meaning', models.CharField(blank=True, help_text='Of formats.names.MEANINGS or SETTINGS; empty: it means none of them.', max_length=40)),
                ('experiment', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='name_meanings', to='lab.experiment')),
            ],
            options={
                'ordering': ['kind', 'name'],
            },
        ),
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
            },
        ),
        migrations.CreateModel(
            name='NodeKey',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('node_name', models.CharField(db_index=True, help_text='Name of the daemon, as in --node.', max_length=120)),
                ('key_id', models.CharField(editable=False, max_length=32, unique=True)),
                ('wrapped', models.CharField(blank=True, editable=False, help_text='The key, encrypted.', max_length=64)),
                ('public_digest', models.CharField(blank=True, editable=False, max_length=64)),
                ('code_expires_at', models.DateTimeField(blank=True, editable=False, help_text='Empty: a rotation.', null=True)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('enrolled_at', models.DateTimeField(blank=True, help_text='When the node has agreed on the key.', null=True)),
                ('used_at', models.DateTimeField(blank=True, help_text='When the node has first signed with it.', null=True)),
                ('revoked_at', models.DateTimeField(blank=True, null=True)),
                ('is_replaced', models.BooleanField(default=False, help_text='Revoked because the node signs with its next key.')),
                ('created_by', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('revoked_by', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'ordering': ['node_name', '-pk'],
            },
        ),
        migrations.CreateModel(
            name='RefusedMessage',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('queue', models.CharField(max_length=200)),
                ('sender', models.CharField(blank=True, help_text='Node as far as it is known; anyone may have written it.', max_length=200)),
                ('reason', models.CharField(max_length=400)),
                ('count', models.PositiveBigIntegerField(default=0)),
                ('size', models.PositiveBigIntegerField(default=0, help_text='Bytes of the last one.')),
                ('sample', models.TextField(blank=True, help_text='Beginning of the last one, with escapes.')),
                ('first_at', models.DateTimeField()),
                ('last_at', models.DateTimeField(db_index=True)),
            ],
            options={
                'ordering': ['-last_at'],
                'constraints': [models.UniqueConstraint(fields=('queue', 'sender', 'reason'), name='refused_message_once')],
            },
        ),
        migrations.CreateModel(
            name='Report',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('title', models.CharField(max_length=200)),
                ('slug', models.SlugField(max_length=120, unique=True)),
                ('text', models.TextField(blank=True, help_text='Markdown with directives such as {{ figure throughput }}.')),
                ('revision', models.PositiveIntegerField(default=1, help_text='Number of saves; an editor saves upon a revision.')),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('saved_at', models.DateTimeField(auto_now_add=True)),
                ('editor_seen_at', models.DateTimeField(blank=True, help_text="Last request from the editor's page.", null=True)),
                ('editor', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('experiment', models.ForeignKey(blank=True, help_text='Default experiment of directives.', null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='reports', to='lab.experiment')),
                ('owner', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='reports', to=settings.AUTH_USER_MODEL)),
                ('saved_by', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'ordering': ['-saved_at', '-pk'],
            },
        ),
        migrations.CreateModel(
            name='ReportVersion',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('number', models.PositiveIntegerField()),
                ('title', models.CharField(max_length=200)),
                ('text', models.TextField()),
                ('content', models.JSONField(help_text='A reports.blocks.Content.')),
                ('digest', models.CharField(editable=False, help_text='Of title, text and content.', max_length=64)),
                ('published_at', models.DateTimeField(auto_now_add=True)),
                ('published_by', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('report', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='versions', to='lab.report')),
            ],
            options={
                'ordering': ['report', '-number'],
            },
        ),
        migrations.CreateModel(
            name='ReportLink',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('token', models.CharField(editable=False, max_length=64, unique=True)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('revoked_at', models.DateTimeField(blank=True, null=True)),
                ('created_by', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('revoked_by', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('version', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='links', to='lab.reportversion')),
            ],
            options={
                'ordering': ['-created_at', '-pk'],
            },
        ),
        migrations.CreateModel(
            name='Run',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('number', models.PositiveIntegerField(help_text='Number within the experiment.')),
                ('label', models.CharField(blank=True, max_length=300)),
                ('origin', models.CharField(choices=[('measured', 'measured by parlab'), ('published', 'published figures, entered as data'), ('imported', 'imported from a file'), ('reported', 'reported by a script')], default='measured', max_length=12)),
                ('point', models.JSONField(default=dict, help_text='Axis values of this point.')),
                ('point_digest', models.CharField(max_length=64)),
                ('repeat', models.PositiveSmallIntegerField(default=1, help_text='Number among the runs of its point, which differ only in their seed.')),
                ('resolved', models.JSONField(help_text='The complete RunConfig with defaults; of an imported run only what its source states.')),
                ('place', models.JSONField(blank=True, default=dict, help_text='The part of its source: a segment, or a table with row and column.')),
                ('first_line', models.BigIntegerField(blank=True, help_text='First line of the run in its source.', null=True)),
                ('last_line', models.BigIntegerField(blank=True, null=True)),
                ('launch', models.JSONField(blank=True, default=dict, help_text='Launch of an imported run: a formats.schema.Launch with all its arguments as printed.')),
                ('state', models.CharField(choices=[('queued', 'queued'), ('dispatched', 'dispatched'), ('running', 'running'), ('finished', 'finished'), ('oom', 'oom'), ('failed', 'failed'), ('cancelled', 'cancelled'), ('lost', 'lost')], default='queued', max_length=12)),
                ('attempt_number', models.PositiveSmallIntegerField(default=1)),
                ('cancel_requested_at', models.DateTimeField(blank=True, null=True)),
                ('reason', models.TextField(blank=True)),
                ('summary', models.JSONField(blank=True, default=dict)),
                ('step_time_s', models.FloatField(blank=True, null=True)),
                ('samples_per_s', models.FloatField(blank=True, null=True)),
                ('tokens_per_s', models.FloatField(blank=True, null=True)),
                ('memory_max_bytes', models.FloatField(blank=True, null=True)),
                ('engine', models.GeneratedField(db_persist=True, expression=django.db.models.fields.json.KeyTextTransform('engine', django.db.models.fields.json.KeyTextTransform('parallel', 'resolved')), output_field=models.TextField(null=True))),
                ('schedule', models.GeneratedField(db_persist=True, expression=django.db.models.fields.json.KeyTextTransform('schedule', django.db.models.fields.json.KeyTextTransform('parallel', 'resolved')), output_field=models.TextField(null=True))),
                ('precision', models.GeneratedField(db_persist=True, expression=django.db.models.fields.json.KeyTextTransform('precision', django.db.models.fields.json.KeyTextTransform('train', 'resolved')), output_field=models.TextField(null=True))),
                ('tensor_parallel_size', models.GeneratedField(db_persist=True, expression=django.db.models.functions.comparison.NullIf(django.db.models.functions.comparison.Cast(django.db.models.fields.json.KeyTextTransform('tensor_parallel_size', django.db.models.fields.json.KeyTextTransform('parallel', 'resolved')), models.FloatField()), models.Value(0.0)), output_field=models.FloatField(null=True))),
                ('pipeline_parallel_size', models.GeneratedField(db_persist=True, expression=django.db.models.functions.comparison.NullIf(django.db.models.functions.comparison.Cast(django.db.models.fields.json.KeyTextTransform('pipeline_parallel_size', django.db.models.fields.json.KeyTextTransform('parallel', 'resolved')), models.FloatField()), models.Value(0.0)), output_field=models.FloatField(null=True))),
                ('data_parallel_size', models.GeneratedField(db_persist=True, expression=django.db.models.functions.comparison.NullIf(django.db.models.functions.comparison.Cast(django.db.models.fields.json.KeyTextTransform('data_parallel_size', django.db.models.fields.json.KeyTextTransform('parallel', 'resolved')), models.FloatField()), models.Value(0.0)), output_field=models.FloatField(null=True))),
                ('micro_batch_size', models.GeneratedField(db_persist=True, expression=django.db.models.functions.comparison.NullIf(django.db.models.functions.comparison.Cast(django.db.models.fields.json.KeyTextTransform('micro_batch_size', django.db.models.fields.json.KeyTextTransform('train', 'resolved')), models.FloatField()), models.Value(0.0)), output_field=models.FloatField(null=True))),
                ('global_batch_size', models.GeneratedField(db_persist=True, expression=django.db.models.functions.comparison.NullIf(django.db.models.functions.comparison.Cast(django.db.models.fields.json.KeyTextTransform('global_batch_size', django.db.models.fields.json.KeyTextTransform('train', 'resolved')), models.FloatField()), models.Value(0.0)), output_field=models.FloatField(null=True))),
                ('ms_per_sample', models.GeneratedField(db_persist=True, expression=django.db.models.functions.comparison.NullIf(django.db.models.functions.comparison.Cast(django.db.models.fields.json.KeyTextTransform('ms_per_sample', 'summary'), models.FloatField()), models.Value(0.0)), output_field=models.FloatField(null=True))),
                ('mfu', models.GeneratedField(db_persist=True, expression=django.db.models.functions.comparison.Coalesce(django.db.models.functions.comparison.NullIf(django.db.models.functions.comparison.Cast(django.db.models.fields.json.KeyTextTransform('mfu', 'summary'), models.FloatField()), models.Value(0.0)), django.db.models.expressions.CombinedExpression(django.db.models.functions.comparison.NullIf(django.db.models.functions.comparison.Cast(django.db.models.fields.json.KeyTextTransform('mfu_pct', 'summary'), models.FloatField()), models.Value(0.0)), '/', models.Value(100.0))), output_field=models.FloatField(null=True))),
                ('gpus', models.GeneratedField(db_persist=True, expression=django.db.models.functions.comparison.Coalesce(django.db.models.functions.comparison.NullIf(django.db.models.functions.comparison.Cast(django.db.models.fields.json.KeyTextTransform('world_size', 'launch'), models.FloatField()), models.Value(0.0)), django.db.models.expressions.CombinedExpression(django.db.models.functions.comparison.NullIf(django.db.models.functions.comparison.Cast(django.db.models.fields.json.KeyTextTransform('gpus_per_node', django.db.models.fields.json.KeyTextTransform('cluster', 'resolved')), models.FloatField()), models.Value(0.0)), '*', django.db.models.functions.comparison.Coalesce(django.db.models.functions.comparison.NullIf(django.db.models.functions.comparison.Cast(django.db.models.fields.json.KeyTextTransform('nodes', django.db.models.fields.json.KeyTextTransform('cluster', 'resolved')), models.FloatField()), models.Value(0.0)), models.Value(1.0))), django.db.models.expressions.CombinedExpression(django.db.models.expressions.CombinedExpression(django.db.models.functions.comparison.NullIf(django.db.models.functions.comparison.Cast(django.db.models.fields.json.KeyTextTransform('tensor_parallel_size', django.db.models.fields.json.KeyTextTransform('parallel', 'resolved')), models.FloatField()), models.Value(0.0)), '*', django.db.models.functions.comparison.NullIf(django.db.models.functions.comparison.Cast(django.db.models.fields.json.KeyTextTransform('pipeline_parallel_size', django.db.models.fields.json.KeyTextTransform('parallel', 'resolved')), models.FloatField()), models.Value(0.0))), '*', django.db.models.functions.comparison.NullIf(django.db.models.functions.comparison.Cast(django.db.models.fields.json.KeyTextTransform('data_parallel_size', django.db.models.fields.json.KeyTextTransform('parallel', 'resolved')), models.FloatField()), models.Value(0.0)))), output_field=models.FloatField(null=True))),
                ('queued_at', models.DateTimeField(auto_now_add=True)),
                ('started_at', models.DateTimeField(blank=True, null=True)),
                ('ended_at', models.DateTimeField(blank=True, null=True)),
                ('numbers_at', models.DateTimeField(db_index=True, default=django.utils.timezone.now, editable=False, help_text='When its summary was last stored.')),
                ('hidden_at', models.DateTimeField(blank=True, editable=False, help_text='When a script deleted its reported run; restoring clears it.', null=True)),
                ('config', models.ForeignKey(on_delete=django.db.models.deletion.RESTRICT, related_name='runs', to='lab.config')),
                ('created_by', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('experiment', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='runs', to='lab.experiment')),
            ],
            options={
                'ordering': ['experiment', 'number'],
            },
        ),
        migrations.CreateModel(
            name='RankTrace',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('rank', models.PositiveIntegerField()),
                ('name', models.CharField(help_text='Name of the imported file, for display only.', max_length=200)),
                ('sha256', models.CharField(editable=False, max_length=64)),
                ('size', models.BigIntegerField(help_text='Bytes of the file.')),
                ('analysis', models.JSONField(default=dict, help_text='A traces.stored.Analysis: breakdown by step, kernels, collectives, memory, problems.')),
                ('created_at', models.DateTimeField(auto_now=True)),
                ('created_by', models.ForeignKey(help_text='Null: recorded by the run.', null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('run', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='traces', to='lab.run')),
            ],
            options={
                'ordering': ['run', 'rank'],
            },
        ),
        migrations.CreateModel(
            name='PictureJob',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('state', models.CharField(choices=[('waiting', 'Waiting'), ('drawing', 'Drawing'), ('done', 'Done'), ('failed', 'Failed')], default='waiting', max_length=10)),
                ('done', models.PositiveIntegerField(default=0)),
                ('total', models.PositiveIntegerField(default=0)),
                ('tries', models.PositiveSmallIntegerField(default=0, help_text='Number of times that a worker started the job.')),
                ('problem', models.TextField(blank=True, help_text='Why the job failed, and what to do.')),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('changed_at', models.DateTimeField(auto_now_add=True, help_text="Time of the worker's last update.")),
                ('created_by', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('version', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='jobs', to='lab.reportversion')),
                ('run', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='picture_jobs', to='lab.run')),
            ],
            options={
                'ordering': ['-pk'],
            },
        ),
        migrations.AddField(
            model_name='finding',
            name='run',
            field=models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='findings', to='lab.run'),
        ),
        migrations.CreateModel(
            name='Event',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('uuid', models.UUIDField(default=uuid.uuid4, editable=False, help_text='Idempotency key for receivers.', unique=True)),
                ('kind', models.CharField(choices=[('run.finished', 'run finished'), ('run.failed', 'run failed'), ('run.oom', 'run out of memory'), ('run.lost', 'run lost'), ('run.cancelled', 'run cancelled'), ('finding.new', 'new finding'), ('node.lost', 'node lost'), ('study.done', 'study done'), ('watch.alert', 'change in a watch'), ('test', 'test')], max_length=16)),
                ('key', models.CharField(default=parlab.lab.models.event.unique_key, help_text='Names the event where it can occur only once.', max_length=200, unique=True)),
                ('at', models.DateTimeField()),
                ('text', models.TextField(help_text='One sentence for people.')),
                ('path', models.CharField(blank=True, help_text='Address of its page on this server.', max_length=300)),
                ('data', models.JSONField(blank=True, default=dict)),
                ('routed_at', models.DateTimeField(blank=True, help_text='When its deliveries were created.', null=True)),
                ('experiment', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='events', to='lab.experiment')),
                ('run', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='events', to='lab.run')),
            ],
            options={
                'ordering': ['-pk'],
            },
        ),
        migrations.AddField(
            model_name='attempt',
            name='run',
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='attempts', to='lab.run'),
        ),
        migrations.CreateModel(
            name='AdviceTrial',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('kind', models.CharField(max_length=40)),
                ('title', models.CharField(max_length=200)),
                ('changes', models.JSONField(default=dict, help_text='Fields with new values.')),
                ('gain', models.FloatField(help_text='Predicted share of the step time that the change saves.')),
                ('low', models.FloatField()),
                ('high', models.FloatField()),
                ('part', models.CharField(help_text='The term of the waterfall that the advice came from.', max_length=40)),
                ('evidence', models.TextField(blank=True)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('created_by', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('changed_run', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='advised_by', to='lab.run')),
                ('run', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='advice_trials', to='lab.run')),
            ],
            options={
                'ordering': ['pk'],
            },
        ),
        migrations.CreateModel(
            name='RunNote',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('text', models.TextField(max_length=20000)),
                ('edited_at', models.DateTimeField(auto_now=True)),
                ('edited_by', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('run', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, related_name='note', to='lab.run')),
            ],
        ),
        migrations.CreateModel(
            name='Snapshot',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('attempt_number', models.PositiveSmallIntegerField(default=1)),
                ('kind', models.CharField(choices=[('configuration', 'Configuration'), ('environment', 'Environment'), ('results', 'Results'), ('image', 'Picture')], max_length=16)),
                ('digest', models.CharField(editable=False, max_length=64)),
                ('content', models.JSONField()),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('created_by', models.ForeignKey(blank=True, help_text='Set for pictures.', null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('experiment', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='snapshots', to='lab.experiment')),
                ('run', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='snapshots', to='lab.run')),
            ],
            options={
                'ordering': ['-created_at'],
            },
        ),
        migrations.CreateModel(
            name='Source',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(help_text='For display only; parlab never opens a file of this name.', max_length=200)),
                ('format', models.CharField(max_length=80)),
                ('wanted_format', models.CharField(blank=True, help_text='The format that the user selected, if any.', max_length=80)),
                ('sha256', models.CharField(editable=False, max_length=64)),
                ('size', models.BigIntegerField(help_text='Bytes of the file.')),
                ('version', models.PositiveIntegerField(default=1, editable=False, help_text='1; higher if an earlier file of this name begins differently.')),
                ('continued_at', models.DateTimeField(blank=True, editable=False, help_text='When the file was last imported again after it had grown.', null=True)),
                ('document', models.JSONField(default=dict, help_text='A formats.schema.Document: segments, tables, figures, images, configs, unread.')),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('created_by', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('experiment', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='sources', to='lab.experiment')),
                ('log_format', models.ForeignKey(blank=True, help_text='The learnt format, if any.', null=True, on_delete=django.db.models.deletion.PROTECT, related_name='sources', to='lab.logformat')),
            ],
            options={
                'ordering': ['experiment', 'pk'],
            },
        ),
        migrations.AddField(
            model_name='run',
            name='source',
            field=models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='runs', to='lab.source'),
        ),
        migrations.CreateModel(
            name='Picture',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('reference', models.CharField(help_text='The name that the document uses.', max_length=300)),
                ('media_type', models.CharField(max_length=40)),
                ('sha256', models.CharField(editable=False, max_length=64)),
                ('data', models.BinaryField()),
                ('source', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='pictures', to='lab.source')),
            ],
            options={
                'ordering': ['source', 'pk'],
            },
        ),
        migrations.AddField(
            model_name='finding',
            name='source',
            field=models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='findings', to='lab.source'),
        ),
        migrations.CreateModel(
            name='SourceChunk',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('position', models.BigIntegerField(help_text='Byte offset of its first byte in the file.')),
                ('size', models.PositiveIntegerField(help_text='Uncompressed size in bytes.')),
                ('data', models.BinaryField(help_text='Compressed with zstd.')),
                ('source', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='chunks', to='lab.source')),
            ],
        ),
        migrations.CreateModel(
            name='Star',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('run', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='stars', to='lab.run')),
                ('user', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to=settings.AUTH_USER_MODEL)),
            ],
        ),
        migrations.CreateModel(
            name='ReportFile',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(help_text='`figure-1.svg`, `report.pdf`, `picture-<sha256>`.', max_length=80)),
                ('version', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='files', to='lab.reportversion')),
                ('file', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to='lab.storedfile')),
            ],
            options={
                'ordering': ['version', 'name'],
            },
        ),
        migrations.CreateModel(
            name='Tag',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(db_index=True, help_text='Lower case, without spaces.', max_length=40)),
                ('experiment', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='tags', to='lab.experiment')),
            ],
            options={
                'ordering': ['name'],
            },
        ),
        migrations.CreateModel(
            name='TagOfRun',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(db_index=True, help_text='Lower case, without spaces.', max_length=40)),
                ('run', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='person_tags', to='lab.run')),
            ],
            options={
                'ordering': ['name'],
            },
        ),
        migrations.CreateModel(
            name='TrackedRun',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('uuid', models.CharField(help_text='The run ID that clients use.', max_length=64, unique=True)),
                ('name', models.CharField(blank=True, max_length=500)),
                ('user_name', models.CharField(blank=True, help_text='The user as the client states it.', max_length=256)),
                ('status', models.CharField(choices=[('RUNNING', 'Running'), ('SCHEDULED', 'Scheduled'), ('FINISHED', 'Finished'), ('FAILED', 'Failed'), ('KILLED', 'Killed')], default='RUNNING', max_length=10)),
                ('start_ms', models.BigIntegerField(blank=True, help_text="Unix milliseconds, by the client's clock.", null=True)),
                ('end_ms', models.BigIntegerField(blank=True, null=True)),
                ('last_report_at', models.DateTimeField(help_text='When the server last received anything from the run.')),
                ('deleted_at', models.DateTimeField(blank=True, null=True)),
                ('last_batch', models.CharField(blank=True, help_text='Digest of the last batch of metrics: a client sends one again after a fault.', max_length=64)),
                ('inputs', models.JSONField(blank=True, default=list, help_text='Datasets.')),
                ('outputs', models.JSONField(blank=True, default=list, help_text='Models.')),
                ('run', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, related_name='tracked', to='lab.run')),
            ],
        ),
        migrations.CreateModel(
            name='Stream',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('key', models.CharField(help_text='ID that the client chose.', max_length=64)),
                ('kind', models.CharField(choices=[('rank', 'Rank'), ('output', 'Output')], default='rank', max_length=10)),
                ('rank', models.IntegerField(default=0, help_text='Rank of the process; of an output, that of its node.')),
                ('committed', models.BigIntegerField(default=0, help_text='Position up to which batches are stored.')),
                ('state', models.CharField(default='running', max_length=12)),
                ('reason', models.TextField(blank=True)),
                ('traceback', models.TextField(blank=True)),
                ('exit_code', models.IntegerField(blank=True, null=True)),
                ('host', models.CharField(blank=True, max_length=255)),
                ('command', models.JSONField(blank=True, default=list)),
                ('environment', models.JSONField(blank=True, default=dict)),
                ('clock_offset_s', models.FloatField(default=0.0, help_text='Clock of the client minus that of the server.')),
                ('opened_at', models.DateTimeField()),
                ('last_report_at', models.DateTimeField()),
                ('tracked', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='streams', to='lab.trackedrun')),
            ],
            options={
                'ordering': ['tracked', 'pk'],
            },
        ),
        migrations.CreateModel(
            name='RunTag',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('key', models.CharField(max_length=250)),
                ('value', models.TextField(blank=True)),
                ('tracked', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='tags', to='lab.trackedrun')),
            ],
            options={
                'ordering': ['key'],
            },
        ),
        migrations.CreateModel(
            name='RunParameter',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('key', models.CharField(max_length=250)),
                ('value', models.TextField(blank=True)),
                ('tracked', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='parameters', to='lab.trackedrun')),
            ],
            options={
                'ordering': ['key'],
            },
        ),
        migrations.CreateModel(
            name='LoggedModel',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('has_run', models.BooleanField(default=True, help_text='False: the run was created to hold the model.')),
                ('model_id', models.CharField(max_length=80, unique=True)),
                ('name', models.CharField(max_length=500)),
                ('model_type', models.CharField(blank=True, max_length=500)),
                ('status', models.CharField(choices=[('LOGGED_MODEL_STATUS_UNSPECIFIED', 'unknown'), ('LOGGED_MODEL_PENDING', 'pending'), ('LOGGED_MODEL_READY', 'ready'), ('LOGGED_MODEL_UPLOAD_FAILED', 'upload failed')], default='LOGGED_MODEL_PENDING', max_length=40)),
                ('created_ms', models.BigIntegerField()),
                ('updated_ms', models.BigIntegerField()),
                ('deleted_at', models.DateTimeField(blank=True, null=True)),
                ('parameters', models.JSONField(blank=True, default=dict)),
                ('tags', models.JSONField(blank=True, default=dict)),
                ('metrics', models.JSONField(blank=True, default=list, help_text="Latest value per metric and dataset, in MLflow's form.")),
                ('tracked', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='logged_models', to='lab.trackedrun')),
            ],
            options={
                'ordering': ['-created_ms', '-pk'],
            },
        ),
        migrations.CreateModel(
            name='LatestMetric',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('key', models.CharField(max_length=250)),
                ('value', models.FloatField(help_text='Null for a value that is not a number.', null=True)),
                ('timestamp_ms', models.BigIntegerField()),
                ('step', models.BigIntegerField()),
                ('tracked', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='metrics', to='lab.trackedrun')),
            ],
            options={
                'ordering': ['key'],
            },
        ),
        migrations.CreateModel(
            name='Artifact',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('path', models.CharField(help_text="Relative to the root of the run's artifacts.", max_length=1000)),
                ('sha256', models.CharField(db_index=True, max_length=64)),
                ('size', models.BigIntegerField(help_text='Bytes.')),
                ('updated_at', models.DateTimeField(auto_now=True)),
                ('tracked', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='artifacts', to='lab.trackedrun')),
            ],
            options={
                'ordering': ['path'],
            },
        ),
        migrations.CreateModel(
            name='ApiToken',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(help_text='What the token is for.', max_length=80)),
                ('digest', models.CharField(editable=False, help_text='SHA-256 of the secret, which is not stored.', max_length=64, unique=True)),
                ('ending', models.CharField(editable=False, help_text='Last characters of the secret, for identification.', max_length=4)),
                ('scopes', models.CharField(default='read write launch', help_text='Names of scopes, separated by spaces.', max_length=40)),
                ('expires_at', models.DateTimeField(blank=True, help_text='Empty: it does not expire.', null=True)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('last_used_at', models.DateTimeField(blank=True, help_text='Accurate to one minute.', null=True)),
                ('revoked_at', models.DateTimeField(blank=True, null=True)),
                ('created_by', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('created_with', models.ForeignKey(blank=True, editable=False, help_text='The token that created this one, which is revoked with it.', null=True, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='lab.apitoken')),
                ('revoked_by', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('user', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='api_tokens', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'verbose_name': 'API token',
                'ordering': ['-created_at', '-pk'],
                'constraints': [models.UniqueConstraint(condition=models.Q(('revoked_at', None)), fields=('user', 'name'), name='api_token_name_once')],
            },
        ),
        migrations.AddConstraint(
            model_name='config',
            constraint=models.UniqueConstraint(fields=('experiment', 'version'), name='config_version_once'),
        ),
        migrations.AddConstraint(
            model_name='experimentlabel',
            constraint=models.UniqueConstraint(fields=('experiment', 'key'), name='experiment_label_once'),
        ),
        migrations.AddConstraint(
            model_name='logformat',
            constraint=models.UniqueConstraint(fields=('name', 'version'), name='log_format_version_once'),
        ),
        migrations.AddConstraint(
            model_name='namemeaning',
            constraint=models.UniqueConstraint(fields=('experiment', 'kind', 'name'), name='name_meaning_once'),
        ),
        migrations.AddIndex(
            model_name='member',
            index=models.Index(fields=['state', 'lease_expires_at'], name='member_lease'),
        ),
        migrations.AddConstraint(
            model_name='member',
            constraint=models.UniqueConstraint(fields=('attempt', 'node_rank'), name='member_node_rank_once'),
        ),
        migrations.AddConstraint(
            model_name='reportversion',
            constraint=models.UniqueConstraint(fields=('report', 'number'), name='report_version_once'),
        ),
        migrations.AddConstraint(
            model_name='ranktrace',
            constraint=models.UniqueConstraint(fields=('run', 'rank'), name='trace_once'),
        ),
        migrations.AddConstraint(
            model_name='picturejob',
            constraint=models.CheckConstraint(condition=models.Q(('version__isnull', False), ('run__isnull', False), _connector='XOR'), name='picture_job_of_one_thing'),
        ),
        migrations.AddIndex(
            model_name='event',
            index=models.Index(condition=models.Q(('routed_at', None)), fields=['id'], name='event_to_route'),
        ),
        migrations.AddIndex(
            model_name='event',
            index=models.Index(fields=['at'], name='event_at'),
        ),
        migrations.AddConstraint(
            model_name='attempt',
            constraint=models.UniqueConstraint(fields=('run', 'number'), name='attempt_number_once'),
        ),
        migrations.AddConstraint(
            model_name='advicetrial',
            constraint=models.UniqueConstraint(fields=('run', 'changed_run'), name='advice_trial_once'),
        ),
        migrations.AddConstraint(
            model_name='snapshot',
            constraint=models.UniqueConstraint(fields=('run', 'attempt_number', 'kind', 'digest'), name='snapshot_content_once'),
        ),
        migrations.AddConstraint(
            model_name='source',
            constraint=models.UniqueConstraint(fields=('experiment', 'sha256'), name='source_once'),
        ),
        migrations.AddIndex(
            model_name='run',
            index=models.Index(fields=['state', 'ended_at', 'experiment', 'hidden_at', 'origin'], name='run_ends'),
        ),
        migrations.AddIndex(
            model_name='run',
            index=models.Index(condition=models.Q(('hidden_at', None)), fields=['-ended_at', '-id'], name='run_newest_end'),
        ),
        migrations.AddIndex(
            model_name='run',
            index=models.Index(condition=models.Q(('repeat__gt', 1)), fields=['experiment'], name='run_repeats'),
        ),
        migrations.AddIndex(
            model_name='run',
            index=models.Index(fields=['experiment', 'state', 'origin', 'engine', 'schedule', 'precision', 'gpus', 'tensor_parallel_size', 'pipeline_parallel_size', 'data_parallel_size', 'micro_batch_size', 'global_batch_size', 'samples_per_s', 'tokens_per_s', 'step_time_s', 'ms_per_sample', 'memory_max_bytes', 'mfu', 'queued_at', 'started_at', 'ended_at', 'hidden_at'], name='run_facts'),
        ),
        migrations.AddConstraint(
            model_name='run',
            constraint=models.UniqueConstraint(fields=('experiment', 'number'), name='run_number_once'),
        ),
        migrations.AddConstraint(
            model_name='run',
            constraint=models.UniqueConstraint(fields=('config', 'point_digest'), name='run_point_once'),
        ),
        migrations.AddConstraint(
            model_name='picture',
            constraint=models.UniqueConstraint(fields=('source', 'reference'), name='picture_once'),
        ),
        migrations.AddConstraint(
            model_name='finding',
            constraint=models.UniqueConstraint(fields=('experiment', 'rule', 'where_digest'), name='finding_once'),
        ),
        migrations.AddConstraint(
            model_name='sourcechunk',
            constraint=models.UniqueConstraint(fields=('source', 'position'), name='source_position_once'),
        ),
        migrations.AddConstraint(
            model_name='star',
            constraint=models.UniqueConstraint(fields=('run', 'user'), name='star_once'),
        ),
        migrations.AddConstraint(
            model_name='reportfile',
            constraint=models.UniqueConstraint(fields=('version', 'name'), name='report_file_once'),
        ),
        migrations.AddConstraint(
            model_name='tag',
            constraint=models.UniqueConstraint(fields=('experiment', 'name'), name='tag_once'),
        ),
        migrations.AddConstraint(
            model_name='tagofrun',
            constraint=models.UniqueConstraint(fields=('run', 'name'), name='tag_of_run_once'),
        ),
        migrations.AddIndex(
            model_name='trackedrun',
            index=models.Index(fields=['status', 'last_report_at'], name='tracked_silence'),
        ),
        migrations.AddConstraint(
            model_name='stream',
            constraint=models.UniqueConstraint(fields=('tracked', 'key'), name='stream_once'),
        ),
        migrations.AddConstraint(
            model_name='runtag',
            constraint=models.UniqueConstraint(fields=('tracked', 'key'), name='run_tag_once'),
        ),
        migrations.AddConstraint(
            model_name='runparameter',
            constraint=models.UniqueConstraint(fields=('tracked', 'key'), name='run_parameter_once'),
        ),
        migrations.AddConstraint(
            model_name='latestmetric',
            constraint=models.UniqueConstraint(fields=('tracked', 'key'), name='latest_metric_once'),
        ),
        migrations.AddConstraint(
            model_name='artifact',
            constraint=models.UniqueConstraint(fields=('tracked', 'path'), name='artifact_path_once'),
        ),
        migrations.RunPython(fill_catalogue, migrations.RunPython.noop),
    ]
