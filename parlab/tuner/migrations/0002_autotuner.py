import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('tuner', '0001_studies'),
    ]

    operations = [
        migrations.AddField(
            model_name='study',
            name='driver',
            field=models.ForeignKey(blank=True, help_text="Run of engine autotuning, where DeepSpeed's own autotuner searches.", null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='studies_as_driver', to='lab.run'),
        ),
        migrations.AlterField(
            model_name='study',
            name='strategy',
            field=models.CharField(choices=[('planned', 'Planned'), ('deepspeed', "DeepSpeed's order"), ('random', 'Random'), ('exhaustive', 'Exhaustive'), ('autotuner', "DeepSpeed's own autotuner")], default='planned', max_length=12),
        ),
    ]
