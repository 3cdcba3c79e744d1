"""`python -m parlab.formats` runs the command parlab.read.

The command joins the readers with the findings, so it stands above this package in the layers and is run by name.
"""

import runpy

runpy.run_module("parlab.read", run_name="__main__", alter_sys=True)
