from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("watch", "0004_projects")]

    operations = [
        migrations.AddField(
            model_name="watch",
            name="is_muted",
            field=models.BooleanField(
                default=False, help_text="Its changes are listed, but neither announced nor put into the inbox."
            ),
        ),
    ]
