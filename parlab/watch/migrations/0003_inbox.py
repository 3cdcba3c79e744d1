from django.db import migrations

DRAWN = 20


def fill(apps, _editor):
    """Open an item of the inbox for each alert about a change for the worse that nobody has answered."""
    item, alerts = apps.get_model("lab", "InboxItem"), apps.get_model("watch", "Alert").objects
    rows = alerts.filter(state="new", is_worse=True, leader=None)
    for alert in rows.select_related("watch__config", "first_bad"):
        if not alert.parts:
            continue
        part = max(alert.parts, key=lambda each: (each["is_worse"], abs(each["size"])))
        bad, config = alert.first_bad, alert.watch.config
        data = {
            "watch": alert.watch.name, "measure": part["measure"].replace("_", " ").capitalize(), "size": part["size"],
            "low": part["low"], "high": part["high"], "node": alert.node, "commit": bad.commit, "is_one_commit": False,
            **values(alert, part),
        }  # fmt: skip
        item.objects.get_or_create(
            key=f"watch.alert/{alert.pk}", done_at=None,
            defaults={
                "kind": "watch.alert", "path": f"/watch/{alert.watch_id}/alerts/{alert.pk}/", "data": data,
                "experiment_id": config.experiment_id if config else None, "run_id": bad.run_id,
                "first_at": alert.created_at, "last_at": alert.created_at,
            },
        )  # fmt: skip


def values(alert, part):
    results = alert.watch.results.filter(series=part["series"]).order_by("position", "at", "pk")
    rows = [(pk, row.get(part["measure"])) for pk, row in results.values_list("pk", "values")]
    rows = [(pk, value) for pk, value in rows if value is not None]
    at = next((place for place, (pk, _) in enumerate(rows) if pk == part["first_bad"]), len(rows))
    first = max(0, at - DRAWN)
    return {"values": [value for _, value in rows[first : at + DRAWN]], "change_at": at - first}


class Migration(migrations.Migration):

    dependencies = [("watch", "0002_simple_schedules"), ("lab", "0003_inbox")]

    operations = [migrations.RunPython(fill, migrations.RunPython.noop)]
