"""What a training script imports: it appends to a spool on disk, and a thread ships the spool to the server.

Only the standard library, and nothing that Python 3.9 lacks.
"""

from runners.client.api import Api
from runners.client.callbacks import DeepSpeedMonitor, HuggingFaceCallback, LightningCallback
from runners.client.run import Run, init

__all__ = ["Api", "DeepSpeedMonitor", "HuggingFaceCallback", "LightningCallback", "Run", "init"]
