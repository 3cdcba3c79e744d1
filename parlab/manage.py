"""Django's command line for parlab: `manage.py` of a checkout, and `parlab manage` of an installation."""

import os
import sys
from collections.abc import Sequence

from django.core.exceptions import ImproperlyConfigured
from django.core.management import execute_from_command_line


def main(argv: Sequence[str]) -> None:
    """Run a command; `argv` begins with the name of the program."""
    os.umask(0o077)  # database, keys, uploads, Redis and logs are for this account only
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "parlab.settings")
    try:
        execute_from_command_line(list(argv))
    except ImproperlyConfigured as error:
        sys.exit(f"{argv[0]}: {error}")


if __name__ == "__main__":
    main(["parlab manage", *sys.argv[1:]])
