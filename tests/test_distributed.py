from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from processes import RankGroup

from training import distributed
from training.checks import ConfigError
from training.distributed import (
    Ranks,
    check_same,
    first_on_machine,
    gather,
    ranks,
    share,
    total,
    wait_for_all,
)


def who() -> list[Any]:
    own = ranks()
    return [own.rank, own.world_size, own.local_rank, own.is_main, own.is_single]


def exchange() -> list[Any]:
    rank = ranks().rank
    return [share({"of": rank}), gather(rank * 10), total([rank + 0.5, 2**52 + rank])]


def prepare_once(folder: str) -> list[str]:
    with first_on_machine():
        file = Path(folder, "data")
        found = file.exists()
        if not found:
            time.sleep(0.2)  # in which the others would begin as well
            file.write_text("prepared")
    with first_on_machine():  # a second time, with something else
        pass
    return ["found" if found else "made", file.read_text()]


def prepare_on_machines(folder: str, nodes: list[int]) -> None:
    """Prepare as the ranks of several machines, and note when."""
    own = ranks()
    local = nodes[: own.rank].count(nodes[own.rank])
    distributed._ranks = replace(own, node=nodes[own.rank], local_rank=local, num_nodes=2)
    with first_on_machine(), open(Path(folder, "notes"), "a", encoding="utf-8") as file:
        print(f"{own.rank} begins", file=file, flush=True)
        time.sleep(0.2)
        print(f"{own.rank} ends", file=file)
    distributed._ranks = own


def compare(marks: list[dict[str, str]]) -> str:
    try:
        check_same(marks[ranks().rank])
    except ConfigError as error:
        return str(error)
    return "same"


def test_a_process_alone_has_no_group_and_exchanges_nothing() -> None:
    assert Ranks() == ranks()
    assert (ranks().is_main, ranks().is_single) == (True, True)
    value = object()
    assert share(value) is value
    assert gather(value) == [value]
    assert total([1.5, 2]) == [1.5, 2]
    wait_for_all()
    check_same({"data": "x"})
    with first_on_machine():
        pass
    assert not distributed.dist.is_initialized()


@pytest.mark.parametrize(
    ("env", "launched"),
    [
        ({}, False),
        ({"WORLD_SIZE": "2"}, False),  # some machines set it for every job
        ({"WORLD_SIZE": "1", "RANK": "0", "MASTER_ADDR": "a", "MASTER_PORT": "1"}, False),
        ({"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "a", "MASTER_PORT": "1"}, True),
    ],
)
def test_several_ranks_are_told_by_what_torchrun_sets(
    monkeypatch: pytest.MonkeyPatch, env: dict[str, str], launched: bool
) -> None:
    for name in ("WORLD_SIZE", "RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert launched == distributed.is_launched()


def test_each_rank_knows_its_place(rank_group: RankGroup) -> None:
    assert rank_group.of(2).call(who) == [[0, 2, 0, True, False], [1, 2, 1, False, False]]


def test_values_are_shared_gathered_and_summed(rank_group: RankGroup) -> None:
    expected = [{"of": 0}, [0, 10], [2.0, 2.0**53 + 1]]
    sums = [1.0 + 1.0, float(2**53 + 1)]
    first, second = rank_group.of(2).call(exchange)
    assert first == second == [expected[0], expected[1], sums]


def test_files_are_made_by_one_rank_while_the_others_wait(
    rank_group: RankGroup, tmp_path: Path
) -> None:
    answers = rank_group.of(2).call(prepare_once, tmp_path)
    assert answers == [["made", "prepared"], ["found", "prepared"]]


def test_on_a_disk_that_machines_share_files_are_made_once_too(
    rank_group: RankGroup, tmp_path: Path
) -> None:
    rank_group.of(3).call(prepare_on_machines, tmp_path, [0, 1, 1])
    lines = (tmp_path / "notes").read_text().splitlines()
    assert lines == [f"{rank} {what}" for rank in range(3) for what in ("begins", "ends")]


def test_other_data_on_another_rank_is_refused_by_name(rank_group: RankGroup) -> None:
    marks = [{"data.train": "aa", "code": "c"}, {"data.train": "bb", "code": "c"}]
    message = (
        "data.train must be the same on every rank, but its mark is aa on rank 0 and bb on rank 1"
    )
    assert rank_group.of(2).call(compare, marks) == [message] * 2
    assert rank_group.of(2).call(compare, marks[:1] * 2) == ["same"] * 2
