"""`python -m parlab`: the command `parlab`."""

import sys

from parlab.client.command.commands import main

if __name__ == "__main__":
    sys.exit(main())
