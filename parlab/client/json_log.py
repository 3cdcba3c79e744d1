"""Log messages as JSON, one object a line: for collectors of logs."""

import json
import logging
import os
from datetime import datetime, timezone
from typing import Any


class JsonLines(logging.Formatter):
    """Formats a message as an object with time (UTC), level, logger, message, and what else is known."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds")
        row: dict[str, Any] = {
            "time": time,
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "process": record.process,
        }
        status = getattr(record, "status_code", None)
        if isinstance(status, int):
            row["status"] = status
        if record.exc_info:
            row["exception"] = self.formatException(record.exc_info)
        return json.dumps(row, ensure_ascii=False, default=str)


def start_logging() -> None:
    """Log to standard error from INFO on: lines, or JSON with PARLAB_LOG_FORMAT=json."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if os.environ.get("PARLAB_LOG_FORMAT") == "json":
        for handler in logging.getLogger().handlers:
            handler.setFormatter(JsonLines())
