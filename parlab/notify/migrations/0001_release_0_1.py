import django.db.models.deletion
import django.utils.timezone
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    # The migrations up to 0.1.0. `manage.py migrate` refuses a database that has only some of them.
    replaces = [
        ('notify', '0001_events'),
    ]

    dependencies = [
        ('lab', '0001_release_0_1'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name='Subscription',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('channel', models.CharField(choices=[('webhook', 'Webhook'), ('mail', 'Mail')], max_length=8)),
                ('url', models.CharField(blank=True, help_text='Address that a webhook posts to.', max_length=2000)),
                ('secret', models.CharField(blank=True, editable=False, help_text='Key of the signature of a webhook.', max_length=64)),
                ('topics', models.JSONField(default=list, help_text='Keys of notify.topics.TOPICS.')),
                ('is_enabled', models.BooleanField(default=True)),
                ('base_url', models.CharField(blank=True, help_text='Address of this server as the user reaches it; links start with it.', max_length=300)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('experiment', models.ForeignKey(blank=True, help_text='Empty: all experiments, and the nodes.', null=True, on_delete=django.db.models.deletion.CASCADE, related_name='subscriptions', to='lab.experiment')),
                ('user', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='subscriptions', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'ordering': ['pk'],
            },
        ),
        migrations.CreateModel(
            name='Delivery',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('state', models.CharField(choices=[('waiting', 'waiting'), ('sending', 'sending'), ('delivered', 'delivered'), ('failed', 'failed')], default='waiting', max_length=10)),
                ('tries', models.PositiveSmallIntegerField(default=0)),
                ('next_try_at', models.DateTimeField(blank=True, help_text='While it is being sent: when another worker may take over.', null=True)),
                ('last_try_at', models.DateTimeField(blank=True, null=True)),
                ('status', models.PositiveSmallIntegerField(blank=True, help_text='HTTP status of the last answer.', null=True)),
                ('answer', models.CharField(blank=True, help_text='Beginning of the last answer, or the problem.', max_length=300)),
                ('took_ms', models.PositiveIntegerField(blank=True, null=True)),
                ('mail', models.CharField(blank=True, help_text='The mail that it is part of.', max_length=32)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('event', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='deliveries', to='lab.event')),
                ('subscription', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='deliveries', to='notify.subscription')),
            ],
            options={
                'verbose_name_plural': 'deliveries',
                'ordering': ['-pk'],
                'indexes': [models.Index(condition=models.Q(('state__in', ['waiting', 'sending'])), fields=['next_try_at'], name='delivery_due')],
                'constraints': [models.UniqueConstraint(fields=('subscription', 'event'), name='delivery_once')],
            },
        ),
    ]
