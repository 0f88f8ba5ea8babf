"""Runs train.py in a fresh process, and ends it when this one is asked to end."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from training.signals import ASKING_TO_END, Interrupted, killed_with_parent
from training.targets import PROJECT

_PATIENCE_S = 30.0  # for a step, and a checkpoint after it


class FreshProcesses:
    """Calls train.py in one process after the other.

    Inside the block a signal ends the process at work, and raises when it is gone: as the run in
    it is not continued, after a short while or a second signal by force.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._received: int | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> FreshProcesses:
        if threading.current_thread() is threading.main_thread():
            self._previous = {n: signal.signal(n, self._receive) for n in ASKING_TO_END}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)

    def __call__(self, arguments: list[str], console: Path) -> int:
        """Run train.py to its end.

        Args:
            arguments: of the command line.
            console: file that gets what it prints.

        Returns:
            Its exit code, or the number of the signal that ended it, negative.

        Raises:
            Interrupted: a signal came; the process has ended.
        """
        self._check()
        command = [sys.executable, str(PROJECT / "train.py"), *arguments]
        with open(console, "ab") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=killed_with_parent(),
            )
        try:
            if self._received is not None:  # between the look before the start and now
                self._end(self._process)
            return self._process.wait()
        finally:
            self._process = None
            self._check()

    def _receive(self, signum: int, frame: FrameType | None) -> None:
        process, is_second = self._process, self._received is not None
        self._received = self._received or signum
        if process is not None and is_second:
            process.kill()  # its workers end with it
        elif process is not None:
            self._end(process)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        process.terminate()
        timer = threading.Timer(_PATIENCE_S, process.kill)
        timer.daemon = True
        timer.start()

    def _check(self) -> None:
        if self._received is not None:
            raise Interrupted(self._received)
