"""What a source of the user's has besides its items is taken for what it means, or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from runs import begin, prepare

from training.checks import ConfigError
from training.data.digits import Digits
from training.sources import check_optional, sizes_of

NAME = "data.train: test_sources.Own"


class Own:
    """A source with attributes that the user chose."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)

    def __len__(self) -> int:
        return 5


def test_a_size_of_the_users_own_is_not_the_number_of_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Digits, "size", 8, raising=False)  # the side of an image, to the user
    with begin(tmp_path, "data.train.limit=24", "data.val.limit=10") as run:
        _, loaders, _ = prepare(run)
    assert loaders.num_train == 24


@pytest.mark.parametrize(
    ("attributes", "sizes"),
    [
        ({}, {0: 5}),
        ({"size": 8}, {0: 5}),
        ({"size": (8, 8)}, {0: 5}),
        ({"size_table": None}, {0: 5}),
        ({"size_table": 3}, {0: 3}),
        ({"size_table": {0: 2, 3: 4}}, {0: 2, 3: 4}),
    ],
)
def test_the_table_of_sizes_is_read_from_size_table_alone(
    attributes: dict[str, Any], sizes: dict[int, int]
) -> None:
    source = Own(**attributes)
    check_optional(source, "data.train")
    assert sizes == sizes_of(source)


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        ({"block_size": [8, 8]}, "block_size must be a positive integer, the items read together"),
        ({"block_size": 0}, "block_size must be a positive integer, the items read together"),
        ({"prefetch": 2}, "prefetch must be a method, called before samples are built"),
        ({"size_table": [8, 8]}, "size_table must be a number of samples, or a table"),
        ({"size_table": {1: 4}}, "size_table must be a number of samples, or a table"),
        ({"size_table": 0}, "size_table must be a number of samples, or a table"),
    ],
)
def test_an_attribute_that_means_something_else_is_refused_with_the_class(
    attributes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        check_optional(Own(**attributes), "data.train")
    ((name, value),) = attributes.items()
    assert str(caught.value).startswith(f"{NAME}.{said}")
    assert f"but got {name}={value!r}; " in str(caught.value)
