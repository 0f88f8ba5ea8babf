"""Values of the environment that a config refers to, kept out of every text that is written."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.resolvers import oc

from training.resolved import is_location

_MIN_LENGTH = 4  # a shorter value would be found in the middle of any word


def referred(composed: DictConfig) -> dict[str, str]:
    """Return the variables of the environment that a config refers to: name -> value.

    Left out are those whose name says that they hold a place, which is written down as it is.

    Args:
        composed: a config that can be resolved.
    """
    found: dict[str, str] = {}

    def noted(name: str, *default: Any) -> Any:
        value = oc.env(name, *default)
        if isinstance(value, str) and oc.env(name, None) == value and not is_location(name):
            found[name] = value
        return value

    OmegaConf.register_new_resolver("oc.env", noted, replace=True)
    try:
        OmegaConf.to_container(composed, resolve=True)
    finally:
        OmegaConf.register_new_resolver("oc.env", oc.env, replace=True)
    return found


class Redaction:
    """Puts references in place of values of the environment.

    Args:
        variables: name -> value; values of less than 4 characters are left alone.
    """

    def __init__(self, variables: Mapping[str, str]) -> None:
        forms = {
            form: f"${{oc.env:{name}}}"
            for name, value in variables.items()
            for form in _forms(value)
            if len(form) >= _MIN_LENGTH
        }
        # The longest first: one value may hold another.
        self._forms = sorted(forms.items(), key=lambda pair: -len(pair[0]))

    def __call__(self, text: str) -> str:
        """Return a text without the values."""
        for form, reference in self._forms:
            text = text.replace(form, reference)
        return text

    def values(self, value: Any) -> Any:
        """Return nested dicts and lists in which each text, and number, is without the values."""
        if isinstance(value, dict):
            return {name: self.values(item) for name, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.values(item) for item in value]
        text = str(value)
        return value if value is None or self(text) == text else self(text)


def _forms(value: str) -> Iterator[str]:
    """Yield how a value looks in messages: as it is, quoted, in JSON, on one line, a line of it."""
    yield value
    yield repr(value)[1:-1]
    yield json.dumps(value)[1:-1]
    yield " ".join(value.split())
    yield from (line.strip() for line in value.splitlines())
    try:
        yield repr(float(value))  # 0.10 is written as 0.1
        yield str(int(value))
    except ValueError:
        return
