#!/usr/bin/env python
"""Django's command line for parlab."""

import os
import sys

from django.core.management import execute_from_command_line

if __name__ == "__main__":
    os.umask(0o077)  # database, keys, uploads, Redis and logs are for this account only
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "parlab.settings")
    execute_from_command_line(sys.argv)
