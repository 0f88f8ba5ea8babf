"""The fixture that the tests of whole commands share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import Trainer


@pytest.fixture
def train(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Trainer]:
    """Runs train.py with outputs below the test's own folder; ends what it has left running."""
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")  # which the command sets, and which stays set
    trainer = Trainer(tmp_path, capsys)
    yield trainer
    trainer.end()
