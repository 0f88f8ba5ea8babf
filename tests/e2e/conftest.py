"""The fixture that the tests of whole commands share."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import Trainer


@pytest.fixture
def train(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Trainer:
    """Runs train.py with outputs below the test's own folder."""
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")  # which the command sets, and which stays set
    return Trainer(tmp_path, capsys)
