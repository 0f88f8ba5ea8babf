"""The config as it is written down: resolved, but for references to the environment."""

from __future__ import annotations

import json
import re
from hashlib import sha256
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from omegaconf.resolvers import oc

from training.config import ConfigError

NOT_OF_THE_RUN = ("hydra", "resume", "replay", "sweep")
"""Keys of a recorded config that say where a run lies or why, and not what it does."""

_MARK = "\0"
_OTHER_RESOLVER = re.compile(r"\$\{(?!oc\.env:)[\w.]+:")
_NESTED_REFERENCE = re.compile(r"\$\{[^{}]*\$\{oc\.env:")
# Variables of the environment with such names say where something lies; all others may be secret.
_LOCATION = re.compile(r"(^|_)(DIR|DIRECTORY|FOLDER|HOME|PATH|ROOT)$")


def resolved(composed: DictConfig) -> dict[str, Any]:
    """Return the config as plain values, as it is written down.

    Interpolations are replaced by what they give, so that the result stands alone, all but
    references to the environment: `${oc.env:API_KEY}` stays as it is, unless the variable's name
    says that it holds a place (`DATA_ROOT`, `HOME`).

    Raises:
        ConfigError: an interpolation cannot be resolved.
    """
    OmegaConf.register_new_resolver("oc.env", _env_reference, replace=True)
    try:
        return {str(name): _resolve(composed, name) for name in composed}
    finally:
        OmegaConf.register_new_resolver("oc.env", oc.env, replace=True)


def is_location(name: str) -> bool:
    """Say whether the name of a variable of the environment says that it holds a place."""
    return _LOCATION.search(name) is not None


def _env_reference(name: str, *default: Any) -> Any:
    if is_location(name):
        return oc.env(name, *default)
    # Marked, so that what else looks like an interpolation can be told from it.
    return _MARK + "${oc.env:" + ",".join([name, *map(_quoted, default)]) + "}" + _MARK


def _quoted(default: Any) -> str:
    if default is None:
        return "null"
    text = str(default)
    if not isinstance(default, str) or re.fullmatch(r"[\w./:-]+", text):
        return text
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _escaped(value: Any) -> Any:
    """Return a value so that reading it again gives it again: texts keep their `${`."""
    if not isinstance(value, str):
        return value
    parts = value.split(_MARK)
    parts[::2] = [part.replace("${", "\\${") for part in parts[::2]]
    return "".join(parts)


def _resolves(parent: DictConfig | ListConfig, key: Any) -> bool:
    OmegaConf.register_new_resolver("oc.env", oc.env, replace=True)
    try:
        parent[key]
    except OmegaConfBaseException:
        return False
    finally:
        OmegaConf.register_new_resolver("oc.env", _env_reference, replace=True)
    return True


def _resolve(parent: DictConfig | ListConfig, key: Any) -> Any:
    raw: Any = OmegaConf.to_container(parent, resolve=False)
    written = raw[key]
    if isinstance(written, str) and _NESTED_REFERENCE.search(written):
        return written  # another resolver works on the value, and is kept with the reference
    try:
        value = parent[key]
    except OmegaConfBaseException as error:
        if _resolves(parent, key):  # it needs the value of the reference, not its name
            return written
        text = str(error).splitlines()[0]
        raise ConfigError(f"{error.full_key}: {written} cannot be resolved: {text}") from error
    if isinstance(value, str) and value.count(_MARK) > 2 and _OTHER_RESOLVER.search(str(written)):
        return written
    if isinstance(value, DictConfig):
        return {name: _resolve(value, name) for name in value}
    if isinstance(value, ListConfig):
        return [_resolve(value, number) for number in range(len(value))]
    return _escaped(value)


def config_digest(config: dict[str, Any]) -> str:
    """Return a mark of all that a run depends on, in the form that is written down."""
    kept = {name: value for name, value in config.items() if name not in NOT_OF_THE_RUN}
    return sha256(json.dumps(kept, sort_keys=True, default=str).encode()).hexdigest()[:16]
