"""What differs around a repeated run, in words."""

from __future__ import annotations

from typing import Any

import pytest

from training.replay import environment_differences

TWO = {"world_size": 2, "num_nodes": 1}


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ({"ranks": TWO}, {}, ["ranks: it was 2 ranks on 1 machine and is 1 process"]),
        (
            {},
            {"ranks": {"world_size": 4, "num_nodes": 2}},
            ["ranks: it was 1 process and is 4 ranks on 2 machines"],
        ),
        ({"ranks": TWO}, {"ranks": TWO}, []),
        ({"torch": {"cuda": "12"}}, {"torch": {}}, ["torch.cuda was 12 and is none"]),
        ({"command": "a"}, {"command": "b"}, []),
    ],
)
def test_differences_of_the_environment_are_told_in_words(
    old: dict[str, Any], new: dict[str, Any], expected: list[str]
) -> None:
    assert expected == list(environment_differences(old, new))
