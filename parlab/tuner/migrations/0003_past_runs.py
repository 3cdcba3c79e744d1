from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('tuner', '0002_autotuner'),
    ]

    operations = [
        migrations.AddField(
            model_name='study',
            name='past_runs',
            field=models.PositiveIntegerField(default=0, help_text='Earlier runs on such nodes that corrected the first predictions.'),
        ),
    ]
