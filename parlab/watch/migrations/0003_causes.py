import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("watch", "0002_look_again")]

    operations = [
        migrations.AddField(
            model_name="alert",
            name="cause",
            field=models.CharField(
                blank=True, help_text="What changed: a commit, software, or a node.", max_length=300
            ),
        ),
        migrations.AddField(
            model_name="alert",
            name="leader",
            field=models.ForeignKey(
                blank=True,
                help_text="The first alert with the same cause, of any watch; only that one is announced.",
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="followers",
                to="watch.alert",
            ),
        ),
        migrations.AddField(
            model_name="result",
            name="hardware",
            field=models.CharField(
                blank=True,
                help_text="Digest of the processor and GPUs: a node may be replaced under its name.",
                max_length=16,
            ),
        ),
    ]
