"""What the messages of a run look like in its log."""

from __future__ import annotations

import logging
from typing import Any

from training.redaction import Redaction


class FileFormatter(logging.Formatter):
    """Writes lines of train.log, without values of the environment."""

    def __init__(self, redact: Redaction) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")
        self._redact = redact

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        """Return a line."""
        record.message = self._redact(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802
        """Return a traceback."""
        return self._redact(super().formatException(ei))
