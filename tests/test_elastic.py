"""What the workers of torchrun leave for a second start of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from processes import RankGroup

from training import distributed, elastic
from training.elastic import after_restart, forget, is_restart, remember, was_said

ARGUMENTS = ["lifetime=2", "seed=42"]


@pytest.fixture
def launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """As a worker of a torchrun that may start it again; yields where notes lie."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    monkeypatch.setattr(elastic.tempfile, "gettempdir", lambda: str(tmp_path))
    yield tmp_path
    monkeypatch.undo()
    after_restart([])


def test_a_first_start_runs_what_was_typed(launched: Path) -> None:
    assert after_restart(ARGUMENTS) == ARGUMENTS
    assert not is_restart()


def test_a_second_start_goes_on_with_the_run_that_the_first_began(launched: Path) -> None:
    remember(Path("/runs/of mine"))
    assert after_restart(ARGUMENTS) == ["resume=/runs/of mine"]
    assert is_restart()


@pytest.mark.parametrize("named", ["resume=/runs/1", "replay=/runs/1", "+resume=/runs/1"])
def test_a_command_that_names_a_run_itself_is_repeated_as_it_is(launched: Path, named: str) -> None:
    remember(Path("/runs/1"))
    assert after_restart([named, "epochs=9"]) == [named, "epochs=9"]
    assert not is_restart()


def test_a_run_that_is_done_is_not_gone_on_with(launched: Path) -> None:
    remember(Path("/runs/1"))
    forget()
    assert list(launched.iterdir()) == []
    assert after_restart(ARGUMENTS) == ARGUMENTS
    forget()  # twice does no harm


@pytest.mark.parametrize(
    ("name", "value"),
    [("TORCHELASTIC_RUN_ID", None), ("TORCHELASTIC_MAX_RESTARTS", "0")],
)
def test_nothing_is_noted_where_nothing_will_be_started_again(
    launched: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str | None
) -> None:
    if value is None:
        monkeypatch.delenv(name)
    else:
        monkeypatch.setenv(name, value)
    remember(Path("/runs/1"))
    assert list(launched.iterdir()) == []
    assert after_restart(ARGUMENTS) == ARGUMENTS


def test_another_launch_does_not_take_the_run_for_its_own(
    launched: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remember(Path("/runs/1"))
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "another")
    assert after_restart(ARGUMENTS) == ARGUMENTS
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setattr(os, "getppid", os.getpid)  # another torchrun of the same id
    assert after_restart(ARGUMENTS) == ARGUMENTS


def test_a_mistake_is_said_once_by_all_starts_together(
    launched: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = []
    for count, text in enumerate(["error: a", "error: a", "error: b", "error: b"]):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", str(count))
        said.append(was_said(text))
    assert said == [False, True, False, True]
    assert list(launched.iterdir()) == []  # after the last of them
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "0")
    assert [was_said("error: a"), was_said("error: a")] == [False, False]


def test_a_note_that_is_no_file_of_ones_own_is_neither_read_nor_written(launched: Path) -> None:
    remember(Path("/runs/1"))
    (note,) = launched.iterdir()
    note.rename(launched / "elsewhere")
    note.symlink_to(launched / "elsewhere")
    assert after_restart(ARGUMENTS) == ARGUMENTS
    remember(Path("/runs/2"))
    assert (launched / "elsewhere").read_text() == "/runs/1"


def test_the_note_of_another_user_is_not_read(
    launched: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remember(Path("/runs/1"))
    (note,) = launched.iterdir()
    uid = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: uid + 1)
    note.rename(str(note).replace(f"reuseloader-{uid}-", f"reuseloader-{uid + 1}-"))
    assert after_restart(ARGUMENTS) == ARGUMENTS


def test_a_note_is_for_its_owner_alone(launched: Path) -> None:
    remember(Path("/runs/1"))
    (note,) = launched.iterdir()
    assert note.stat().st_mode & 0o777 == 0o600


def ask_on_machines(begun: list[str | None]) -> list[Any]:
    """Ask as ranks of which each is alone on its machine."""
    own = distributed.ranks()
    distributed._ranks = replace(own, node=own.rank, num_nodes=own.world_size, local_rank=0)
    note = begun[own.rank]
    elastic._begun = lambda: None if note is None else Path(note)  # type: ignore[assignment]
    return [after_restart(ARGUMENTS), is_restart()]


@pytest.mark.parametrize(
    ("begun", "expected"),
    [
        ([None, "/runs/1"], [["resume=/runs/1"], True]),  # rank 0 is on another machine now
        (["/runs/1", None], [["resume=/runs/1"], True]),
        ([None, None], [ARGUMENTS, False]),
    ],
)
def test_the_run_is_known_from_whichever_machine_has_a_note(
    rank_group: RankGroup, begun: list[str | None], expected: list[Any]
) -> None:
    assert rank_group.anew(2).call(ask_on_machines, begun) == [expected] * 2
