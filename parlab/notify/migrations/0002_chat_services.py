from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("notify", "0001_release_0_1")]

    operations = [
        migrations.AddField(
            model_name="subscription",
            name="style",
            field=models.CharField(
                choices=[("parlab", "Webhook"), ("slack", "Slack"), ("teams", "Microsoft Teams")],
                default="parlab",
                help_text="Whose message a webhook posts.",
                max_length=8,
            ),
        ),
        migrations.AddField(
            model_name="subscription",
            name="quiet_from",
            field=models.PositiveSmallIntegerField(
                blank=True, help_text="Hour from which nothing is sent, in the time zone of the server.", null=True
            ),
        ),
        migrations.AddField(
            model_name="subscription",
            name="quiet_until",
            field=models.PositiveSmallIntegerField(
                blank=True, help_text="Hour at which what waited is sent.", null=True
            ),
        ),
        migrations.AddField(
            model_name="subscription",
            name="digest_at",
            field=models.PositiveSmallIntegerField(
                blank=True, help_text="Hour of one mail a day with everything; empty: as it happens.", null=True
            ),
        ),
    ]
