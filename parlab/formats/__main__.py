"""`python -m parlab.formats` runs the command parlab.read; with `--learn` or `--with`, the command of learnt formats.

parlab.read joins the readers with the findings, so it stands above this package in the layers and is run by name.
"""

import runpy
import sys

from parlab.formats.learnt import learn_command

if learn_command.OPTIONS & {argument.partition("=")[0] for argument in sys.argv[1:]}:
    sys.exit(learn_command.main())
runpy.run_module("parlab.read", run_name="__main__", alter_sys=True)
