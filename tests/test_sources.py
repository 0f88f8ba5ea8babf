"""What a source of the user's has besides its items is taken for what it means, or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from runs import begin, prepare

from training.checks import ConfigError
from training.data.digits import Digits
from training.sources import check_optional, check_source, identity_of, labels_of, sizes_of

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
        ({"record_of": [3, 1]}, "record_of must be a method, which returns the index of the item"),
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


class Whole(Own):
    """A source with all that training asks of one."""

    classes = ("cat", "dog")

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"image": torch.zeros(1, 2, 2, dtype=torch.uint8), "label": 0}

    def identity(self) -> str:
        return "mine"


@pytest.mark.parametrize(
    "labels",
    [
        [0, 1, 0, 1, 1],
        (0, 1, False, 1, True),
        range(5),
        np.array([0, 1, 0, 1, 1], np.uint8),
        torch.tensor([0, 1, 0, 1, 1]),
        [torch.tensor(1)] * 5,
    ],
)
def test_labels_are_integers_in_any_list(labels: Any) -> None:
    source = Whole(labels=labels, classes=list("abcde"))
    check_source(source, "data.train", num_classes=5)
    found = labels_of(source)
    assert found is not None
    assert found.tolist() == [int(label) for label in labels]


class Odd:
    """Raises whatever it is asked."""

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise KeyError("of the user")


@pytest.mark.parametrize(
    "labels",
    [
        *(None, 3, "abcde", ["a"] * 5, [0.5] * 5, [None] * 5, [0, 1, 0, 1], [[0], [0, 1], 1, 0, 1]),
        *(np.zeros((5, 2), np.int64), torch.zeros(5), {0: 1}, {1, 2}, Odd(), [2**70] * 5),
    ],
)
def test_what_is_called_labels_and_is_something_else_is_left_alone(labels: Any) -> None:
    source = Whole(labels=labels)
    check_source(source, "data.train", num_classes=2)
    assert labels_of(source) is None


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        (
            {"labels": [0, 1, 0, 2, 9]},
            "labels must be in [0, 2), the classes of data, but got",
        ),
        ({"labels": [0, 1, -1, 0, 0]}, "labels must be in [0, 2), the classes of data, but got la"),
        ({"classes": 2}, "classes must be a list of names, but got int 2"),
        ({"classes": "ab"}, "classes must be a list of names, but got str 'ab'"),
        ({"classes": [0, 1]}, "classes must be a list of names, but got list [0, 1]"),
        ({"classes": None}, "classes must be a list of names, but got NoneType None"),
    ],
)
def test_labels_and_classes_that_are_something_else_are_named_with_the_class(
    attributes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        check_source(Whole(**attributes), "data.train", num_classes=2)
    assert str(caught.value).startswith(f"data.train: test_sources.Whole.{said}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "classes", [["a", "b"], ("a", "b"), np.array(["a", "b"]), {"a": 0, "b": 1}, {"a": 0}.keys()]
)
def test_classes_are_names_in_any_list(classes: Any) -> None:
    check_source(Whole(classes=classes), "data.train", num_classes=len(classes))


def test_the_first_label_outside_the_classes_is_named_with_its_index() -> None:
    with pytest.raises(ConfigError, match=r"but got label=2 at index=3$"):
        check_source(Whole(labels=[0, 1, 0, 2, 9]), "data.train", num_classes=2)


@pytest.mark.parametrize("name", ["__len__", "__getitem__", "identity"])
def test_a_method_that_is_missing_is_named(name: str) -> None:
    kind = type("Partly", (), {key: value for key, value in vars(Whole).items() if key != name})
    if name != "__len__":
        kind.__len__ = Own.__len__
    with pytest.raises(ConfigError, match=rf"Partly must have a method {name}, "):
        check_source(kind(), "data.train", num_classes=2)


def test_an_identity_that_is_no_method_or_gives_no_text_is_named() -> None:
    with pytest.raises(ConfigError, match=r"Whole must have a method identity, which returns"):
        check_source(Whole(identity="mine"), "data.train", num_classes=2)
    with pytest.raises(ConfigError, match=r"Whole\.identity\(\) must return a text, but .* int 3$"):
        identity_of(Whole(identity=lambda: 3), "data.train")
    assert identity_of(Whole(), "data.train") == "mine"
