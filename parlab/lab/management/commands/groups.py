"""`manage.py groups`: make the groups viewer, operator and admin, or bring them up to date."""

from typing import Any

from django.core.management.base import BaseCommand

from parlab.lab.services import groups_refresh


class Command(BaseCommand):
    help = "Make the groups viewer, operator and admin, and give them the permissions that they lack."

    def handle(self, *args: Any, **options: Any) -> None:
        for name, count in groups_refresh().items():
            self.stdout.write(f"{name}: {f'{count} permissions added' if count else 'up to date'}")
