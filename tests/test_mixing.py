"""Mixing, against published vectors and an oracle, and the streams that it keeps apart."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reuseloader import mixing
from reuseloader.mixing import mix, step, step_array

VECTORS = json.loads((Path(__file__).parent / "vectors" / "schedule.json").read_text())
MODULE = Path(mixing.__file__)


def splitmix64(state: np.ndarray) -> np.ndarray:
    """The published step on wrapping uint64 arrays (Steele, Lea and Flood, OOPSLA 2014)."""
    z = state.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@pytest.mark.parametrize("vector", VECTORS["mix"], ids=lambda vector: str(vector["values"]))
def test_mix_gives_the_published_vectors(vector: dict[str, Any]) -> None:
    assert mix(*vector["values"]) == vector["mix"]


def test_one_value_gives_the_known_outputs_of_the_splitmix64_generator() -> None:
    # The reference generator seeded with 1234567; its state grows by a constant at each output.
    known = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert [mix(1234567 + turn * 0x9E3779B97F4A7C15) for turn in range(4)] == known


def test_mix_equals_a_wrapping_64_bit_oracle() -> None:
    values = np.random.default_rng(1).integers(0, 2**64, (6, 500), dtype=np.uint64)
    state = np.zeros(500, np.uint64)
    for count, row in enumerate(values, start=1):
        state = splitmix64(state ^ row)
        assert [mix(*column) for column in values[:count].T.tolist()] == state.tolist()


def test_a_step_of_an_array_is_that_of_each_number() -> None:
    numbers = np.random.default_rng(2).integers(0, 2**64, (3, 4), dtype=np.uint64)
    expected = [[step(number) for number in row] for row in numbers.tolist()]
    assert step_array(numbers).tolist() == expected == splitmix64(numbers).tolist()


def test_mix_takes_integers_modulo_two_to_the_64() -> None:
    assert mix(-1) == mix(2**64 - 1) == mix(2**65 - 1)
    assert mix(7, -(2**64) - 5) == mix(2**64 + 7, -5)


@pytest.mark.parametrize("kind", [np.int8, np.int64, np.uint64])
def test_mix_takes_numpy_integers_for_the_numbers_they_are(kind: Any) -> None:
    values = [np.iinfo(kind).min, 5, np.iinfo(kind).max]
    assert mix(*map(kind, values)) == mix(*map(int, values))
    assert type(mix(kind(5))) is int


def test_every_stream_of_a_seed_has_a_number_of_its_own_which_never_changes() -> None:
    numbers = {name: n for name, n in vars(mixing).items() if name.startswith("TO_")}
    assert numbers == {
        **{"TO_BUILD": 1, "TO_ORDER": 2, "TO_FINISH": 3, "TO_SEED_WORKERS": 4, "TO_VERIFY": 5},
        **{"TO_DEAL": 6, "TO_SHUFFLE_SHARE": 7, "TO_KEEP": 8, "TO_ASSIGN": 9},
        "TO_SEED_RANKS": 10,
    }
    # No two modules draw from one stream, and none from a number of its own making.
    project = MODULE.parents[1]
    files = [
        file for name in ("reuseloader", "training") for file in (project / name).rglob("*.py")
    ]
    names: list[str] = []
    for file in files:
        words = set(re.findall(r"\bTO_[A-Z_]+\b", file.read_text()))
        names += [] if file == MODULE else words
        assert not re.search(
            r"\bmix\(([\w.]+, )?\d", re.sub('""".*?"""', "", file.read_text(), flags=re.S)
        )
    assert sorted(names) == sorted(numbers)
