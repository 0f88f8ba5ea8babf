"""A command on several ranks, of which one reads it and the others follow."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from omegaconf import open_dict
from processes import RankGroup
from runs import SMALL, train

from training import distributed, torchrun
from training.checks import ConfigError
from training.command import run_command
from training.complaints import report
from training.config import load_config
from training.curriculum import expand
from training.distributed import RankFailedError, Ranks, ranks, take
from training.records import Record, Run
from training.targets import PROJECT
from training.torchrun import command_name, each_rank, follow, lead, refuse_sweep


def failing(kinds: list[str]) -> list[Any]:
    """Run a main function that ends as told on this rank; return exit code and what was printed."""
    torchrun.join_group = ranks  # type: ignore[assignment]  # these ranks have met already
    os.environ["RANK"] = str(ranks().rank)

    def main(*_: Any) -> None:
        kind = kinds[ranks().rank]
        if kind == "bug":
            raise ValueError("a bad thing")
        if kind == "mistake":
            raise SystemExit(1)
        if kind == "waits":
            take("what never comes")

    text, code = io.StringIO(), 0
    with contextlib.redirect_stderr(text):
        try:
            with each_rank(main) as own:
                own()
        except SystemExit as end:
            code = end.code or 0  # type: ignore[assignment]
    return [code, text.getvalue()]


def refused(folder: str, *overrides: str) -> str:
    """Try to train; return how the command would report what ends this rank."""
    text = io.StringIO()
    with contextlib.redirect_stderr(text):
        try:
            train(Path(folder), *overrides)
        except (ConfigError, RankFailedError) as error:
            report(error, f"error: {error}")
    return text.getvalue()


def commanded() -> list[Any]:
    """Run the whole command as the one rank of a machine; return the arguments it came to."""
    own, called = ranks(), []
    distributed._ranks = replace(own, node=own.rank, num_nodes=own.world_size, local_rank=0)
    torchrun.join_group = ranks  # type: ignore[assignment]
    sys.argv = ["train.py", "lifetime=2"]
    try:
        run_command(lambda *_: called.append(sys.argv[1:]))
    except SystemExit as end:
        called.append(end.code)
    return called


def led(folder: str) -> list[Any]:
    """Begin a run on rank 0, and follow on the others; return what this rank works with."""
    name = "cache.directory='${oc.env:LOCAL_RANK}/cache'"
    if not ranks().is_main:
        with follow() as run:
            choice = HydraConfig.get().runtime.choices["model"]
            return [str(run.directory), str(run.cache), run.config.seed, choice]
    with initialize_config_dir(str(PROJECT / "conf"), version_base="1.3"):
        composed = compose("config", overrides=[*SMALL, "seed=7", name], return_hydra_config=True)
    HydraConfig.instance().set_config(composed)
    choice = composed.hydra.runtime.choices["model"]
    with open_dict(composed):
        composed.pop("hydra")
    config = load_config(composed)
    record = Record(config={}, overrides=[], curriculum=expand(composed, config.curriculum.table))
    with Run(Path(folder), config, record) as run:
        lead(run, composed)
        return [str(run.directory), str(run.cache), run.config.seed, choice]


def follow_nothing() -> int:
    if ranks().is_main:
        torchrun._end_followers()
        return 0
    try:
        with follow():
            return 9
    except SystemExit as end:
        return end.code  # type: ignore[return-value]


def test_a_process_alone_runs_the_main_function_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)

    def main() -> None: ...

    with each_rank(main) as own:
        assert own is main


@pytest.mark.parametrize("by_torchrun", [True, False])
def test_a_rank_ends_with_the_torchrun_that_started_it(
    monkeypatch: pytest.MonkeyPatch, by_torchrun: bool
) -> None:
    called: list[str] = []
    for name in ("end_with_parent", "join_group"):
        monkeypatch.setattr(torchrun, name, lambda name=name: called.append(name))
    monkeypatch.setattr(torchrun, "is_launched", lambda: True)
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    if by_torchrun:
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    with pytest.raises(SystemExit, match="0"), each_rank(lambda: None):
        pass
    assert called == [*(["end_with_parent"] if by_torchrun else []), "join_group"]


@pytest.mark.parametrize("size", [1, 2])
def test_a_sweep_is_for_one_process(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(torchrun, "ranks", lambda: Ranks(world_size=size))
    sweep = Namespace(multirun=True, overrides=["lifetime=1,2"])
    refuse_sweep(Namespace(multirun=False, overrides=["lifetime=1"]))
    if size == 1:
        refuse_sweep(sweep)
        return
    with pytest.raises(ConfigError, match="--multirun must not be used under torchrun"):
        refuse_sweep(sweep)


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        (Ranks(), "python"),
        (Ranks(world_size=4, local_world_size=4), "torchrun --nproc-per-node=4"),
        (
            Ranks(world_size=4, local_world_size=2, num_nodes=2),
            "torchrun ... --nproc-per-node=2",
        ),
    ],
)
def test_a_run_is_gone_on_with_by_as_many_ranks(
    monkeypatch: pytest.MonkeyPatch, place: Ranks, expected: str
) -> None:
    monkeypatch.setattr(torchrun, "ranks", lambda: place)
    assert expected == command_name()


def test_the_other_ranks_follow_the_run_of_rank_0_with_an_environment_of_their_own(
    rank_group: RankGroup, tmp_path: Path
) -> None:
    folder = str(tmp_path / "run")
    first, second = rank_group.anew(2).call(led, folder)
    assert [folder, "0/cache", 7, first[3]] == first
    assert [folder, "1/cache", 7, first[3]] == second
    names = {path.name for path in Path(folder).iterdir()}
    assert {"config.yaml", "status.json", "train.log"} <= names
    assert not any(name.endswith(".tmp") for name in names)


def test_the_ranks_of_several_machines_begin(rank_group: RankGroup) -> None:
    assert rank_group.anew(2).call(commanded) == [[["lifetime=2"], 0]] * 2


def test_where_there_is_nothing_to_run_all_end_well(rank_group: RankGroup) -> None:
    assert rank_group.anew(2).call(follow_nothing) == [0, 0]


@pytest.mark.parametrize("failed", [0, 1])
def test_the_traceback_of_the_rank_that_failed_is_the_only_one(
    rank_group: RankGroup, failed: int
) -> None:
    kinds = ["waits", "waits"]
    kinds[failed] = "bug"
    answers = rank_group.anew(2).call(failing, kinds)
    assert [code for code, _ in answers] == [1, 1]
    head = "the run ends with this error:\nTraceback (most recent call last):\n"
    assert answers[failed][1].startswith(head if failed == 0 else f"rank 1: {head}")
    assert answers[failed][1].endswith("ValueError: a bad thing\n\n")
    assert answers[1 - failed][1] == ""


def test_the_same_error_on_all_ranks_is_shown_once(rank_group: RankGroup) -> None:
    answers = rank_group.anew(2).call(failing, ["bug", "bug"])
    assert [code for code, _ in answers] == [1, 1]
    assert "".join(text for _, text in answers).count("ValueError: a bad thing\n") == 1


def parted(kinds: list[str]) -> list[Any]:
    """End as `failing` does, without the group where this rank has an error to end with."""
    answer = failing(kinds)
    if answer[0] != 0 and kinds[ranks().rank] == "mistake":
        torch.distributed.destroy_process_group()  # as at the end of the process
    return answer


def test_a_rank_that_ended_well_has_nothing_to_say_of_rank_0_that_did_not(
    rank_group: RankGroup,
) -> None:
    group = rank_group.anew(2)
    answers = group.call(parted, ["mistake", "well"])
    group.close()
    assert answers == [[1, ""], [1, ""]]


@pytest.mark.parametrize("place", ["train", "val"])
def test_fewer_samples_than_ranks_are_refused_in_one_line_before_the_first_epoch(
    rank_group: RankGroup, tmp_path: Path, place: str
) -> None:
    answers = rank_group.anew(2).call(refused, tmp_path, f"data.{place}.limit=1")
    message = f"data.{place} must hold at least one sample for each of 2 ranks, but it holds 1"
    assert answers == [f"error: {message}\n", ""]
    assert not (tmp_path / "metrics.csv").exists()


def test_all_well_and_the_ranks_part(rank_group: RankGroup) -> None:
    assert rank_group.anew(2).call(failing, ["well", "well"]) == [[0, ""]] * 2
