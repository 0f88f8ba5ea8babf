"""What a signature says of an argument is held against the entry of the config."""

from __future__ import annotations

import math
from typing import Any, Optional, Union

import pytest

from training.checks import ConfigError
from training.signature import check_entries


class Target:
    def __init__(
        self,
        count: int,
        share: float = 0.5,
        flag: bool = False,
        name: str = "a",
        most: int | None = None,
        old: Optional[float] = None,  # noqa: UP045
        either: Union[int, str] = 1,  # noqa: UP007
        later: int = None,  # type: ignore[assignment]  # noqa: RUF013
        sizes: list[int] | int = 1,
        **options: int,
    ) -> None: ...


Target.__module__ = "training.made_up"


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("count", [0, -1, 5, 5.0, 10**400, {"_target_": "mine.count"}]),
        ("share", [0, 1, 0.5, -1e300, math.inf]),
        ("flag", [True, False, 0, 1]),
        ("name", ["", "b"]),
        ("most", [None, 3]),
        ("old", [None, 0.5]),
        ("either", [3, "b"]),
        ("later", [None, 3]),
        ("sizes", ["anything", None, {}]),
        ("unknown", ["anything", None, {}]),
        ("options", ["anything"]),
    ],
)
def test_what_the_signature_allows_or_does_not_speak_of_passes(
    name: str, values: list[Any]
) -> None:
    for value in values:
        check_entries(Target, {name: value}, "model")


@pytest.mark.parametrize(
    ("name", "values", "rule"),
    [
        ("count", ["two", 1.5, math.nan, math.inf, True, None, [], {"a": 1}], "an integer"),
        ("share", ["two", math.nan, True, None, [0.5]], "a number"),
        ("flag", ["perhaps", 2, 0.5, None, []], "true or false"),
        ("name", [3, None, True, ["a"]], "a text"),
        ("most", ["two", False], "null or an integer"),
        ("old", ["two", False], "null or a number"),
        ("either", [None, 1.5], "an integer or a text"),
    ],
)
def test_what_the_signature_excludes_is_named_with_its_rule(
    name: str, values: list[Any], rule: str
) -> None:
    for value in values:
        with pytest.raises(ConfigError) as caught:
            check_entries(Target, {name: value}, "data.train")
        given = "null" if value is None else value
        expected = f"data.train.{name} must be {rule}, but got data.train.{name}={given}"
        assert expected == str(caught.value)


def test_a_function_is_read_like_a_class_and_what_has_no_signature_passes() -> None:
    def function(count: int) -> None: ...

    check_entries(function, {"count": "two"}, "build")  # a user's own may convert it
    function.__module__ = "training.made_up"
    with pytest.raises(ConfigError):
        check_entries(function, {"count": "two"}, "build")
    check_entries(dict, {"count": "two"}, "build")


def hinted_oddly(count: "NoSuchType") -> None: ...  # type: ignore[name-defined]  # noqa: F821, UP037


def test_a_hint_that_leads_nowhere_is_passed_over() -> None:
    check_entries(hinted_oddly, {"count": "two"}, "build")
