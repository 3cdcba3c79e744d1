"""Moved to runners.node.jobs.ship; supervisors that an upgrade finds at work start it here. Goes with 0.3."""

import runpy

if __name__ == "__main__":
    runpy.run_module("runners.node.jobs.ship", run_name="__main__", alter_sys=True)
