"""The command line: options and overrides in any order, mistakes in one line."""

from __future__ import annotations

import pytest
from hydra._internal.utils import get_args_parser

from training.arguments import is_sweep, join, parse
from training.config import ConfigError


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["a=1"], ["a=1"]),
        (["-m", "a=1,2"], ["--multirun", "a=1,2"]),
        (["a=1", "-m", "b=2"], ["--multirun", "a=1", "b=2"]),
        (["a=1", "--multirun"], ["--multirun", "a=1"]),
        (["--cfg", "job", "a=1", "--resolve"], ["--cfg=job", "--resolve", "a=1"]),
        (
            ["a=1", "-cn", "x", "~b", "-cp", "y"],
            ["--config-path=y", "--config-name=x", "a=1", "~b"],
        ),
        (["--info"], ["--info=all"]),
        (["-h"], ["--help"]),
        ([], []),
    ],
)
def test_options_come_first_and_overrides_keep_their_order(
    given: list[str], expected: list[str]
) -> None:
    assert expected == join(parse(given))
    assert vars(parse(given)) == vars(get_args_parser().parse_args(expected))  # as Hydra reads it


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            ["--lifetime=2"],
            "--lifetime=2 is not an option; a value is set without dashes, lifetime=2",
        ),
        (["a=1", "-lifetime=2"], "-lifetime=2 is not an option; a value is set without dashes"),
        (["--multirunn"], "--multirunn is not an option; did you mean --multirun?"),
        (["--frobnicate"], "--frobnicate is not an option; `python train.py --hydra-help` lists"),
        (["--cfg", "nope"], "argument --cfg/-c: invalid choice: 'nope'"),
        (["--cfg"], "argument --cfg/-c: expected one argument"),
        (["--resolve"], "--resolve needs --cfg: python train.py --cfg job --resolve"),
        (["-m", "--run"], "--run and --multirun exclude each other"),
        (["-m", "a=1", "--cfg", "job"], "--multirun and --cfg exclude each other"),
        (["--experimental-rerun", "x"], "--experimental-rerun reads a pickle, which can run code"),
        (["lifetime", "=", "2"], "lifetime must have the form key=value, without spaces around"),
        (
            ["lifetime=", "2"],
            "2 must have the form key=value, without spaces around the equals sign",
        ),
        (["=2"], "=2 must have the form key=value"),
        (["resume"], "resume must have the form key=value"),
    ],
)
def test_what_hydra_would_answer_with_a_page_is_answered_in_a_line(
    given: list[str], text: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(given)
    assert str(caught.value).startswith(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["-m", "a=1"], True),
        (["a=1", "hydra.mode=MULTIRUN"], True),
        (["a=1"], False),
        (["--run", "a=1"], False),
    ],
)
def test_a_sweep_is_told_from_a_run(given: list[str], expected: bool) -> None:
    assert expected == is_sweep(parse(given))
