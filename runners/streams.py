"""Moved to runners.supervisor.streams; units, jobs and configurations of 0.1 start it here. Goes with 0.3."""

import runpy

if __name__ == "__main__":
    runpy.run_module("runners.supervisor.streams", run_name="__main__", alter_sys=True)
