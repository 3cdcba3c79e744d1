from typing import Any

from django.db import migrations

from parlab.series.partitions import TABLES, partitions, vacuum_often


def forwards(_apps: Any, schema_editor: Any) -> None:
    if schema_editor.connection.vendor != "postgresql":
        return
    for table in TABLES:
        for name in partitions(table):
            vacuum_often(name)


class Migration(migrations.Migration):
    dependencies = [("series", "0001_release_0_1")]
    operations = [migrations.RunPython(forwards, migrations.RunPython.noop)]
