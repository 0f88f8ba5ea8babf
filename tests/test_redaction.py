"""No text that a run writes holds a value of the environment that its config refers to."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import pytest
import runs
from omegaconf import OmegaConf
from test_records import files

from reuseloader import ReuseKey
from training.checks import ConfigError
from training.models import SmallConvNet
from training.redaction import Redaction, referred

VALUES = {
    "TOKEN_A": "-".join(("hunter2", "xyzzy")),  # not as they would stand in a diff of this file
    "TOKEN_B": "\n".join(("two lines'", 'of "it" \\n')),
    "TOKEN_C": "0." + "48150",
}


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in VALUES.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("DATA_ROOT", "/some/place")


def test_what_a_config_refers_to_is_found_wherever_it_stands(variables: None) -> None:
    config = {
        "name": "TOKEN_A",
        "nodes": [{"a": "${oc.env:${name}}"}, "x ${oc.decode:${oc.env:TOKEN_C}}"],
        "place": "${oc.env:DATA_ROOT}",
        "unset": "${oc.env:TOKEN_Z,other}",
    }
    expected = {name: VALUES[name] for name in ("TOKEN_A", "TOKEN_C")}
    assert expected == referred(OmegaConf.create(config))
    assert OmegaConf.create({"x": "${oc.env:TOKEN_A}"}).x == VALUES["TOKEN_A"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("got hunter2-xyzzy!", "got ${oc.env:TOKEN_A}!"),
        (f"got {VALUES['TOKEN_B']!r}", "got '${oc.env:TOKEN_B}'"),
        (" ".join(f"got {VALUES['TOKEN_B']}".split()), "got ${oc.env:TOKEN_B}"),
        ("lr=0.48150, lr=0.4815", "lr=${oc.env:TOKEN_C}, lr=${oc.env:TOKEN_C}"),
        ("hunter2", "hunter2"),
    ],
)
def test_a_value_is_found_in_every_form_that_messages_give_it(text: str, expected: str) -> None:
    assert expected == Redaction(VALUES)(text)


def test_of_two_values_the_longer_one_is_replaced_whole() -> None:
    redact = Redaction({"A": "pass", "B": "password", "C": "abc", "D": ""})
    assert redact("password, pass, abc") == "${oc.env:B}, ${oc.env:A}, abc"


def test_numbers_and_texts_inside_of_tables_are_replaced() -> None:
    redact = Redaction({"A": "0.25", "B": "secret"})
    table = {0: {"alpha": 0.25, "fill": None, "on": True}, 4: ["a secret", 0.5]}
    expected = {0: {"alpha": "${oc.env:A}", "fill": None, "on": True}, 4: ["a ${oc.env:B}", 0.5]}
    assert expected == redact.values(table)


class TokenNet(SmallConvNet):
    """A model that is given a secret, and talks about it."""

    def __init__(self, num_classes: int, width: int, token: str, fails: str = "") -> None:
        warnings.warn(f"the token is {token}", stacklevel=1)
        logging.getLogger("training").info("the token is %s", token)
        if fails == "at once":
            raise ValueError(f"the token {token} is refused")
        self._text = f"the token {token!r} is refused" if fails else ""
        super().__init__(num_classes, width=width)

    def forward(self, images: Any) -> Any:
        if self._text:
            raise RuntimeError(self._text) from ValueError(self._text)
        return super().forward(images)


def build_loudly(key: ReuseKey, *, source: Any, transforms: Any, token: str) -> Any:
    from training.build import build_image

    if key.index == 0:
        warnings.warn(f"the token is {token}", stacklevel=1)
    return build_image(key, source=source, transforms=transforms)


EVERY_GROUP = (
    "model._target_=test_redaction.TokenNet",
    "+model.token='${oc.env:TOKEN_A}'",
    "build._target_=test_redaction.build_loudly",
    "+build.token='${oc.env:TOKEN_B}'",
    "fingerprint='${oc.env:TOKEN_A}'",
    "tracker=tensorboard",
    "tracker.num_pictures=2",
    "optimizer.lr='${oc.decode:${oc.env:TOKEN_C}}'",
    "schedule.max_lr='${optimizer.lr}'",
    "augment=digits",
    "augment.magnitude='${oc.decode:${oc.env:TOKEN_C}}'",
    "cache.keep=true",
)


@pytest.mark.parametrize("fails", ["", "at once", "in a step"])
def test_no_file_of_a_run_holds_a_value(fails: str, tmp_path: Path, variables: None) -> None:
    overrides = (*EVERY_GROUP, f"+model.fails='{fails}'", "epochs=1")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        if fails:
            with pytest.raises((ConfigError, RuntimeError), match="refused"):
                runs.train(tmp_path, *overrides)
        else:
            runs.train(tmp_path, *overrides)
    found = files(tmp_path)
    log = found["train.log"].decode()
    assert log.count("the token is ${oc.env:TOKEN_A}") == 2
    assert fails or "the token is ${oc.env:TOKEN_B}" in log
    assert (b"refused" in found["status.json"]) == bool(fails)
    secrets = [VALUES["TOKEN_A"], "two lines'", 'of "it"', r"of \"it\"", "4815"]
    held = [
        (name, secret) for name in found for secret in secrets if secret.encode() in found[name]
    ]
    assert held == []
