"""The panels on the page of an experiment: their order and sizes, of each person or of everybody."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from django.contrib.auth.models import User
from django.db import transaction

from parlab.lab.models import Experiment, PanelLayout
from parlab.lab.services import storable

MAX_PANELS = 40
COLUMNS = 12
LEAST_WIDTH, LEAST_HEIGHT, MOST_HEIGHT = 3, 5, 20
MAX_NAME = 200


class Placed(NamedTuple):
    """A panel in the grid: so many of its 12 columns wide, so many units of 24 pixels high."""

    name: str
    width: int
    height: int


def placed_panels(panels: Any) -> list[Placed]:
    """Read panels from JSON: what is no panel is left out, sizes are kept within the limits of the grid."""
    rows = panels if isinstance(panels, list) else []
    read = [_placed(row) for row in rows[:MAX_PANELS] if isinstance(row, Mapping)]
    return list({panel.name: panel for panel in read if panel.name}.values())


def _placed(row: Mapping[str, Any]) -> Placed:
    name = row.get("name")
    return Placed(
        storable.text(name)[:MAX_NAME] if isinstance(name, str) else "",
        _within(row.get("w"), LEAST_WIDTH, COLUMNS, COLUMNS // 2),
        _within(row.get("h"), LEAST_HEIGHT, MOST_HEIGHT, COLUMNS),
    )


def _within(value: Any, least: int, most: int, default: int) -> int:
    return min(most, max(least, value)) if isinstance(value, int) and not isinstance(value, bool) else default


def layout_of(*, user: User, experiment: Experiment) -> list[Placed] | None:
    """Return the panels that a person arranged, else those for everybody; None without either."""
    rows = PanelLayout.objects.filter(experiment=experiment, user__in=[user.pk]) | PanelLayout.objects.filter(
        experiment=experiment, user=None
    )
    found = sorted(rows, key=lambda row: row.user_id is None)
    return placed_panels(found[0].panels) if found else None


@transaction.atomic
def layout_save(*, user: User | None, experiment: Experiment, panels: Iterable[Placed]) -> None:
    """Store the panels of a person, or those of everybody (`user` is None)."""
    value = [{"name": panel.name, "w": panel.width, "h": panel.height} for panel in panels]
    PanelLayout.objects.update_or_create(user=user, experiment=experiment, defaults={"panels": value})


def layout_reset(*, user: User, experiment: Experiment) -> None:
    """Forget the panels of a person: the page shows those for everybody, else the usual ones."""
    PanelLayout.objects.filter(user=user, experiment=experiment).delete()
