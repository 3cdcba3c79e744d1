"""`manage.py token USER`: create a token in a terminal."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from parlab.lab.models import SCOPES, Project
from parlab.lab.models.access.project import SHARED_SLUG, shared_project_id
from parlab.lab.services.access.tokens import MAX_DAYS, token_create


def _project(slug: str) -> Project:
    if slug == SHARED_SLUG:
        return Project.objects.get(pk=shared_project_id())
    found = Project.objects.filter(slug=slug).first()
    if found is None:
        raise CommandError(
            f"project {slug!r} is unknown; use one of {', '.join(Project.objects.values_list('slug', flat=True))}"
        )
    return found


class Command(BaseCommand):
    help = "Create an API token of a user and print its secret, which cannot be shown again."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("username", metavar="USER")
        parser.add_argument("--name", default="", help="what the token is for (default: the date)")
        parser.add_argument(
            "--scope", action="append", choices=SCOPES, help="what it may do, repeatable (default: everything)"
        )
        parser.add_argument("--days", type=int, help=f"lifetime, at most {MAX_DAYS} (default: no expiry)")

        parser.add_argument("--project", default="shared", help="slug of the project that it reaches (default: shared)")

    def handle(
        self,
        *args: Any,
        username: str,
        name: str,
        scope: list[str] | None,
        days: int | None,
        project: str,
        **options: Any,
    ) -> None:
        user = User.objects.filter(username=username).first()
        if user is None or not user.is_active:
            names = ", ".join(User.objects.filter(is_active=True).values_list("username", flat=True)[:20])
            problem = "unknown" if user is None else "disabled"
            raise CommandError(
                f"user {username!r} is {problem}; use one of {names or 'those of manage.py createsuperuser'}"
            )
        name = name or f"manage.py token, {timezone.now():%Y-%m-%d %H:%M:%S}"
        try:
            _, secret = token_create(
                user=user, name=name, by=user, scopes=scope or SCOPES, days=days, project=_project(project)
            )
        except ValueError as error:
            raise CommandError(str(error)) from error
        self.stdout.write(secret)
