#!/usr/bin/env python
"""Django's command line for parlab."""

import sys

from parlab.manage import main

if __name__ == "__main__":
    main(sys.argv)
