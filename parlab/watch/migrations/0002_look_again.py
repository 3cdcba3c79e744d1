from typing import Any

from django.db import migrations, models


def look_again(apps: Any, _schema_editor: Any) -> None:
    """Let every watch read all runs once: earlier looks read the newest 2,000 attempts only."""
    apps.get_model("watch", "Watch").objects.update(checked_at=None)


class Migration(migrations.Migration):
    dependencies = [("watch", "0001_watches"), ("lab", "0029_numbers_at")]

    operations = [
        migrations.AlterField(
            model_name="watch",
            name="checked_at",
            field=models.DateTimeField(
                blank=True,
                help_text="When it last looked for results; empty: the next look reads all runs.",
                null=True,
            ),
        ),
        migrations.RunPython(look_again, migrations.RunPython.noop),
    ]
