"""`manage.py groups`: create or update the groups viewer, operator and admin."""

from typing import Any

from django.core.management.base import BaseCommand

from parlab.lab.services.access.groups import groups_refresh


class Command(BaseCommand):
    help = "Create the groups viewer, operator and admin, and add missing permissions."

    def handle(self, *args: Any, **options: Any) -> None:
        for name, count in groups_refresh().items():
            self.stdout.write(f"{name}: {f'{count} permissions added' if count else 'up to date'}")
