"""Where the files of runs are, and their way to the object storage."""

from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from parlab.lab.services import stored_files


class Command(BaseCommand):
    help = "Tell where artifacts and traces are; with --move send those on the disk to the object storage."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--move", action="store_true", help="send files on the disk to PARLAB_STORAGE_URL")

    def handle(self, *args: Any, move: bool, **options: Any) -> None:
        if move:
            try:
                self.stdout.write(f"{stored_files.files_move()} files moved")
            except (ValueError, OSError) as error:
                raise CommandError(str(error)) from error
        self.stdout.write(settings.STORAGE_URL or str(stored_files.root()))
