"""The log of a run: what its messages look like, and what becomes of those that find no room."""

from __future__ import annotations

import logging
import sys
import warnings
from contextlib import suppress
from pathlib import Path
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


class LogFile(logging.FileHandler):
    """Writes train.log. That it cannot, on a full disk for example, is said once and stops nothing.

    Args:
        path: made with the first message, so that a finished run stays as it is.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, encoding="utf-8", errors="backslashreplace", delay=True)
        self._was_said = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Say once what the error is that is being handled."""
        if not self._was_said:
            error = sys.exc_info()[1]
            print(f"warning: {self.baseFilename} cannot be written: {error}", file=sys.stderr)
        self._was_said = True

    def close(self) -> None:
        """Close the file, with or without the last messages."""
        with suppress(OSError):
            super().close()


class Messages:
    """Gives what is logged, and Python's warnings in one line each, to handlers of a run's own."""

    def __init__(self, *handlers: logging.Handler) -> None:
        self._handlers = handlers

    def install(self) -> None:
        """Begin, and let no other handler have them."""
        self._before = []
        for logger in map(logging.getLogger, ("training", "py.warnings")):
            self._before.append((logger, logger.handlers, logger.propagate, logger.level))
            logger.handlers = list(self._handlers)
            logger.propagate = False
        logging.getLogger("training").setLevel(logging.INFO)
        logging.captureWarnings(True)
        self._format_warning = warnings.formatwarning
        warnings.formatwarning = lambda message, *_: str(message)

    def restore(self) -> None:
        """Give them back to those that had them before."""
        warnings.formatwarning = self._format_warning
        logging.captureWarnings(False)
        for logger, handlers, propagate, level in self._before:
            logger.handlers, logger.propagate = handlers, propagate
            logger.setLevel(level)
