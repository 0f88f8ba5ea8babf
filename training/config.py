"""One typed config, checked once: YAML and command line go in, frozen dataclasses come out."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass, make_dataclass
from functools import cache
from typing import Any, Final, get_args, get_origin, get_type_hints

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException
from omegaconf.errors import ValidationError as OmegaConfValidationError

from training.checks import ConfigError, check, check_minimum
from training.data.folders import class_names
from training.options import LIST_RULES, ReportConfig, SweepConfig, TrackerConfig, TrainerConfig
from training.sections import (
    AugmentConfig,
    CacheConfig,
    CheckpointConfig,
    CurriculumConfig,
    DataConfig,
    LoaderConfig,
    Node,
    Table,
)
from training.workers import auto_workers

# ${times:40.0,${augment.magnitude}}: a parameter that grows with a knob.
OmegaConf.register_new_resolver("times", lambda value, factor: value * factor, replace=True)


def _num_class_folders(root: str | None) -> int:
    if not root:
        raise ConfigError("data.root must be given: the folder of the images")
    try:
        return len(class_names(root))
    except (OSError, ValueError) as error:
        raise ConfigError(f"data.{error}".replace("got root=", "got data.root=")) from error


# ${num_class_folders:PHOTOS}: how many classes a folder of images has.
OmegaConf.register_new_resolver("num_class_folders", _num_class_folders, replace=True)

_CHOSEN = ("data", "augment", "model", "optimizer", "schedule")  # a file of each, at least
DEVICES = ("auto", "cpu", "cuda", "mps")


@dataclass(frozen=True, kw_only=True)
class Config:
    """Everything a run depends on; `conf/config.yaml` says what each entry means."""

    lifetime: int
    seed: int
    epochs: int
    batch_size: int
    num_workers: int
    num_threads: int
    device: str
    deterministic: bool
    fingerprint: str | None
    build: Node
    data: DataConfig
    augment: AugmentConfig
    curriculum: CurriculumConfig
    model: Node
    optimizer: Node
    schedule: Node
    loader: LoaderConfig
    cache: CacheConfig
    trainer: TrainerConfig
    tracker: TrackerConfig
    checkpoint: CheckpointConfig
    report: ReportConfig
    sweep: SweepConfig
    schedule_end: int | None = None
    resume: str | None = None
    replay: str | None = None

    def __post_init__(self) -> None:
        for name in ("lifetime", "epochs", "batch_size", "num_threads"):
            check_minimum(name, getattr(self, name), 1)
        check_minimum("num_workers", self.num_workers, 0)
        spanned = self.schedule_end
        holds = spanned is None or spanned >= 1
        check("schedule_end", spanned, holds, "null or a positive integer")
        known = self.device.partition(":")[0] in DEVICES
        check("device", self.device, known, f"one of {', '.join(DEVICES)}")


def load_config(composed: DictConfig) -> Config:
    """Turn what Hydra composed into a checked `Config`.

    Raises:
        ConfigError: an unknown key, a value of the wrong type or outside its range.
    """
    # The schema would put its defaults in place of some of them.
    for key in _missing_keys(OmegaConf.to_container(composed, resolve=False)):
        raise ConfigError(f"{key} must be given, for example on the command line")
    if absent := [name for name in _CHOSEN if name not in composed]:
        raise _lacking({name: {} for name in absent})
    _check_flags(composed)
    if composed.get("num_workers") == "auto":
        composed = OmegaConf.merge(composed, {"num_workers": auto_workers()})  # type: ignore[assignment]
    try:
        merged = OmegaConf.merge(OmegaConf.structured(_thawed(Config)), composed)
        values = OmegaConf.to_container(merged, resolve=True)
    except ConfigKeyError as error:
        raise unknown_key(_full_key(error)) from error
    except OmegaConfValidationError as error:
        raise _wrong_type(error, composed) from error
    except OmegaConfBaseException as error:
        if own := _of_a_resolver(error):
            raise own from error
        # a list for a mapping, or the reverse; a row of a table at what is no epoch
        if not error.full_key or str(error.full_key).startswith("curriculum.table."):
            raise _wrong_type(error, composed) from error
        raise ConfigError(f"{error.full_key}: {str(error).splitlines()[0]}") from error
    hints = get_type_hints(Config)
    for key in [key for key in _missing_keys(values) if key in hints and is_dataclass(hints[key])]:
        values[key] = {}  # a section that is younger than a recorded config: as it is by default
    _check_targets(values)
    try:
        config = _freeze(Config, values)
    except TypeError as error:
        raise _lacking(values) from error
    if any(_missing_keys(values)):
        raise _lacking(values)
    assert isinstance(config, Config)
    return config


def _check_flags(composed: DictConfig) -> None:
    """Refuse a number where true or false stands: OmegaConf takes any for true but 0."""
    for key in _flags():
        value = OmegaConf.select(composed, key, throw_on_resolution_failure=False)
        holds = type(value) is not int or value in (0, 1)
        check(key, value, holds, "true or false")


@cache
def _flags() -> list[str]:
    hints = {"": get_type_hints(Config)}
    hints |= {name: get_type_hints(kind) for name, kind in hints[""].items() if is_dataclass(kind)}
    split = [(key, *key.rpartition(".")[::2]) for key in _known_keys(Config)]
    return [key for key, section, name in split if hints[section][name] is bool]


def _check_targets(value: Any, place: str = "") -> None:
    """Refuse a `_target_` that is no path, at any depth."""
    if isinstance(value, dict):
        target = value.get("_target_", "a.b")
        is_path = isinstance(target, str) and target != ""
        given = target if is_path or target else repr(target)
        check(f"{place}_target_", given, is_path, "the path of a class or function")
        for name, inner in value.items():
            _check_targets(inner, f"{place}{name}.")
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            _check_targets(inner, f"{place.removesuffix('.')}[{number}].")


def _missing_keys(value: Any, prefix: str = "") -> Iterator[str]:
    if value == "???":
        yield prefix.removesuffix(".")
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from _missing_keys(inner, f"{prefix}{name}.")


def _lacking(values: Any) -> ConfigError:
    empty = [name for name, value in values.items() if value == {} and name != "curriculum"]
    name = next(_missing_keys(values), empty[0] if empty else "a section")
    return ConfigError(
        f"{name} must be in the config, but it is not; a config that another version recorded may "
        "lack what conf/config.yaml holds now"
    )


def _of_a_resolver(error: BaseException | None) -> ConfigError | None:
    """Return the error that a resolver of ours raised; OmegaConf wraps it, and more than once."""
    while error is not None and not isinstance(error, ConfigError):
        error = error.__context__
    return error


@cache
def _thawed(schema: type) -> type:
    """Return a copy that is not frozen: OmegaConf cannot merge into frozen dataclasses."""
    hints = get_type_hints(schema)
    entries = []
    for entry in fields(schema):
        hint = hints[entry.name]
        kind = _thawed(hint) if is_dataclass(hint) else hint
        default = field(default=entry.default, default_factory=entry.default_factory)
        entries.append((entry.name, kind, default))
    return make_dataclass(schema.__name__, entries, kw_only=True)


def _freeze(schema: type, values: Any) -> Any:
    hints = get_type_hints(schema)
    return schema(
        **{
            name: _freeze(hints[name], value) if is_dataclass(hints[name]) else value
            for name, value in values.items()
        }
    )


def unknown_key(key: str, known: Iterable[str] = ()) -> ConfigError:
    """Return the error for a key that is neither in the schema nor among `known` ones."""
    group, _, rest = key.partition(".")
    if rest and key in _known_keys(Config):
        return ConfigError(f"{key} is a key of other files of conf/{group} than the one in use")
    known = sorted({*_known_keys(Config), *known})
    parent = key.rpartition(".")[0]
    siblings = [name for name in known if parent and name.rpartition(".")[0] == parent]
    last = key.rpartition(".")[2]
    # The path may be wrong, and the last word right.
    same = [name for name in known if name.rpartition(".")[2] == last]
    if siblings:
        words = {name.rpartition(".")[2]: name for name in siblings}
        near = [words[word] for word in difflib.get_close_matches(last, words, n=1, cutoff=0.5)]
    else:
        near = difflib.get_close_matches(key, known, n=1)
    if near := same or near:
        return ConfigError(f"{key} is not a key of the config; did you mean {near[0]}?")
    remedy = f"known: {', '.join(siblings)}" if siblings else "`python train.py --help` lists them"
    return ConfigError(f"{key} is not a key of the config; {remedy}")


def suggest(word: str, known: list[str]) -> str:
    """Return a remedy for a mistyped word: the nearest known one, or all of them."""
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"


def _known_keys(schema: type, prefix: str = "") -> Iterator[str]:
    hints = get_type_hints(schema)
    for name in (entry.name for entry in fields(schema)):
        yield prefix + name
        if is_dataclass(hints[name]):
            yield from _known_keys(hints[name], f"{prefix}{name}.")


_ABSENT: Final = object()


def _culprit(composed: DictConfig) -> str:
    """Return the innermost key that does not merge; some errors of OmegaConf do not say it."""
    wrong, schema = "the config", OmegaConf.structured(_thawed(Config))
    for key in _known_keys(Config):
        value = OmegaConf.select(composed, key, default=_ABSENT, throw_on_resolution_failure=False)
        if value is _ABSENT:
            continue
        single = OmegaConf.create()
        OmegaConf.update(single, key, value, merge=False)
        try:
            OmegaConf.merge(schema, single)
        except OmegaConfBaseException:
            wrong = key
    return wrong


def _full_key(error: OmegaConfBaseException) -> str:
    return str(error.full_key or error.key or "the config")


def _wrong_type(error: OmegaConfBaseException, composed: DictConfig) -> ConfigError:
    key = str(error.full_key or _culprit(composed))
    for name in ("curriculum.table", *LIST_RULES):
        if key.startswith(name):
            key = name  # of which the whole shows what is wrong
    value = OmegaConf.select(composed, key, throw_on_resolution_failure=False)
    hint: Any = Config
    for name in key.split("."):
        hint = get_type_hints(hint).get(name, Any) if is_dataclass(hint) else Any
    given = "null" if value is None else value
    return ConfigError(f"{key} must be {_rule(key, hint, value)}, but got {key}={given}")


def _rule(key: str, hint: Any, value: Any) -> str:
    words = {int: "an integer", float: "a number", bool: "true or false", str: "a text"}
    for kind, text in words.items():
        if hint in (kind, kind | None):
            return text
    if key in LIST_RULES:
        return LIST_RULES[key]
    if hint == Table | None:
        return "rows by first epoch, like {0: {magnitude: 0.3}, 4: {magnitude: 1.0}}"
    if key.endswith("]"):
        return "a number"
    if any(get_origin(kind) is dict for kind in get_args(hint)):
        return "null or a mapping, like {key: value}"
    if hint == Node and isinstance(value, str):
        return f"a mapping, like {key}._target_={value}"
    if is_dataclass(hint):
        return f"a mapping, like {key}.{fields(hint)[0].name}=..."
    return {dict: "a mapping", list: "a list of numbers"}.get(get_origin(hint), "as in conf/")
