"""Commands that a signal ends."""

from __future__ import annotations

import os
import signal
import time

import pytest
from commands import QUICK, Trainer, status


def test_the_whole_group_may_be_told_to_end(train: Trainer) -> None:
    process = train.start(*QUICK, "num_workers=2", "epochs=2000")
    while not list(train.folder.rglob("last.pt")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGTERM)  # the workers get it as well
    err = process.communicate(timeout=60)[1]
    (run,) = [path.parent for path in train.folder.rglob("status.json")]
    assert process.returncode == 143, err
    assert (status(run)["status"], err.count("\n")) == ("interrupted", 1)
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


@pytest.mark.parametrize("after", [0.3, 1.5])
def test_ctrl_c_before_the_run_begins_shows_no_traceback(train: Trainer, after: float) -> None:
    process = train.start(*QUICK, "epochs=2000")
    time.sleep(after)
    os.killpg(process.pid, signal.SIGINT)
    err = process.communicate(timeout=60)[1]
    assert process.returncode in (-signal.SIGINT, 128 + signal.SIGINT), err
    assert "Traceback" not in err and err.count("\n") <= 2
