from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("series", "0007_rank_streams")]

    operations = [
        migrations.RemoveIndex(model_name="serieschunk", name="chunk_last"),
        migrations.AddIndex(
            model_name="serieschunk",
            index=models.Index(
                condition=models.Q(("is_last", True)), fields=["attempt", "metric"], name="chunk_last_metric"
            ),
        ),
    ]
