from typing import Any

from django.db import migrations

from parlab.series import partitions

TABLES = ("series_serieschunk", "series_serieslevel", "series_logchunk", "series_operationchunk")


def divide(apps: Any, schema_editor: Any) -> None:
    """Partition the tables on PostgreSQL; no row is copied."""
    if schema_editor.connection.vendor == "postgresql":
        for table in TABLES:
            partitions.divide(table)
        partitions.extend(TABLES)


class Migration(migrations.Migration):
    dependencies = [("series", "0010_archives")]

    # Going back leaves the partitions: earlier releases read and write them like tables.
    operations = [migrations.RunPython(divide, migrations.RunPython.noop)]
