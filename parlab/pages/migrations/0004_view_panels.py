from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("pages", "0003_projects")]

    operations = [
        migrations.AddField(
            model_name="savedview",
            name="panels",
            field=models.JSONField(blank=True, default=list),
        ),
    ]
