"""The log of all runs of a job, ``job.log``: everything from the pipeline's logger, mode 0600."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tasks.shared.errors import storage_errors
from tasks.shared.log import logger


class _JobLogFormatter(logging.Formatter):
    """Formatter: time in UTC, level, message; one line per record, so that no message can forge a line."""

    converter = staticmethod(time.gmtime)

    def format(self, record: logging.LogRecord) -> str:
        record.exc_info = None  # a traceback may quote data
        record.exc_text = None
        text = super().format(record)
        return text.replace("\r", "\\r").replace("\n", "\n    ")


@contextmanager
def job_log(path: Path) -> Iterator[None]:
    """Append everything from the pipeline's logger to ``job.log`` (0600)."""
    with storage_errors(path):
        stream = path.open("a", encoding="utf-8")
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_JobLogFormatter("%(asctime)sZ %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S"))
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        stream.close()
