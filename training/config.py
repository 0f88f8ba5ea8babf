"""One typed config, checked once: YAML and command line go in, frozen dataclasses come out."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass, make_dataclass
from typing import Any, Final, get_type_hints

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException
from omegaconf.errors import ValidationError as OmegaConfValidationError

from training.checks import ConfigError, check, check_minimum
from training.data.folders import class_names
from training.options import TrackerConfig, TrainerConfig

Node = dict[str, Any]  # a mapping with `_target_`: what to call, and with which arguments
Table = dict[int, dict[str, Any]]  # first epoch -> parameter -> value

# ${times:40.0,${augment.magnitude}}: a parameter that grows with a knob.
OmegaConf.register_new_resolver("times", lambda value, factor: value * factor, replace=True)


def _num_class_folders(root: str | None) -> int:
    if root is None:
        raise ConfigError("data.root must be given: the folder of the images")
    try:
        return len(class_names(root))
    except (OSError, ValueError) as error:
        raise ConfigError(f"data.{error}".replace("got root=", "got data.root=")) from error


# ${num_class_folders:PHOTOS}: how many classes a folder of images has.
OmegaConf.register_new_resolver("num_class_folders", _num_class_folders, replace=True)

DEVICES = ("auto", "cpu", "cuda", "mps")


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Where samples come from: `train` and `val` are nodes of a source.

    What has a default here is for the nodes to refer to, as `${data.root}`.
    """

    train: Node
    val: Node
    prepare: dict[str, Any]
    num_classes: int
    mean: list[float]
    std: list[float]
    root: str | None = None
    path: str | None = None
    cache_bytes: int | None = None
    download: bool = False
    on_error: str = "raise"
    image_size: int = 64

    def __post_init__(self) -> None:
        check_minimum("data.image_size", self.image_size, 1)
        known = self.on_error in ("raise", "skip")
        check("data.on_error", self.on_error, known, "raise or skip")
        check("data.num_classes", self.num_classes, self.num_classes >= 1, "a positive integer")
        check("data.std", self.std, all(s > 0 for s in self.std), "a list of positive numbers")
        same = len(self.mean) == len(self.std)
        check("data.mean", self.mean, same, f"as long as data.std ({len(self.std)} channels)")


@dataclass(frozen=True, kw_only=True)
class AugmentConfig:
    """Transforms by name: `stored` run once a generation, `fresh` at every use.

    With `replaces_prepare` the stored ones get the raw item, and `data.prepare` is for validation.
    """

    magnitude: float = 1.0
    replaces_prepare: bool = False
    stored: dict[str, Any]
    fresh: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class CurriculumConfig:
    """Parameters of `augment` that change with the epoch; None for none."""

    table: Table | None = None


@dataclass(frozen=True, kw_only=True)
class LoaderConfig:
    """Options that go to the DataLoaders as they are."""

    prefetch_factor: int = 2
    persistent_workers: bool = True
    multiprocessing_context: str | None = None
    drop_last: bool = False

    def __post_init__(self) -> None:
        check_minimum("loader.prefetch_factor", self.prefetch_factor, 1)
        start = self.multiprocessing_context
        methods = (None, "fork", "spawn", "forkserver")
        rule = "null, fork, spawn or forkserver"
        check("loader.multiprocessing_context", start, start in methods, rule)


@dataclass(frozen=True, kw_only=True)
class CacheConfig:
    """Where stored samples lie; `directory` None is a folder inside the run folder."""

    directory: str | None = None
    keep: bool = False
    verify: float = 0.0

    def __post_init__(self) -> None:
        check("cache.verify", self.verify, 0 <= self.verify <= 1, "a share from 0 to 1")


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """How often checkpoints are written, and how many numbered ones are kept."""

    every_steps: int | None = None
    keep: int = 0

    def __post_init__(self) -> None:
        every = self.every_steps
        holds = every is None or every >= 1
        check("checkpoint.every_steps", every, holds, "null or a positive integer")
        check_minimum("checkpoint.keep", self.keep, 0)


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
        if not error.full_key:  # a list for a mapping, or the reverse
            raise _wrong_type(error, composed) from error
        raise ConfigError(f"{error.full_key}: {str(error).splitlines()[0]}") from error
    config = _freeze(Config, values)
    assert isinstance(config, Config)
    return config


def _missing_keys(value: Any, prefix: str = "") -> Iterator[str]:
    if value == "???":
        yield prefix.removesuffix(".")
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from _missing_keys(inner, f"{prefix}{name}.")


def _of_a_resolver(error: BaseException | None) -> ConfigError | None:
    """Return the error that a resolver of ours raised; OmegaConf wraps it, and more than once."""
    while error is not None and not isinstance(error, ConfigError):
        error = error.__context__
    return error


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
    known = sorted({*_known_keys(Config), *known})
    parent = key.rpartition(".")[0]
    siblings = [name for name in known if parent and name.rpartition(".")[0] == parent]
    last = key.rpartition(".")[2]
    # The path may be wrong, and the last word right.
    same = [name for name in known if name.rpartition(".")[2] == last]
    near = same or difflib.get_close_matches(key, siblings or known, n=1)
    if near:
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
    wrong = "the config"
    for key in _known_keys(Config):
        value = OmegaConf.select(composed, key, default=_ABSENT, throw_on_resolution_failure=False)
        if value is _ABSENT:
            continue
        single = OmegaConf.create()
        OmegaConf.update(single, key, value, merge=False)
        try:
            OmegaConf.merge(OmegaConf.structured(_thawed(Config)), single)
        except OmegaConfBaseException:
            wrong = key
    return wrong


def _full_key(error: OmegaConfBaseException) -> str:
    return str(error.full_key or error.key or "the config")


def _wrong_type(error: OmegaConfBaseException, composed: DictConfig) -> ConfigError:
    key = str(error.full_key or _culprit(composed))
    value = OmegaConf.select(composed, key, throw_on_resolution_failure=False)
    hint: Any = Config
    for name in key.split("."):
        hint = get_type_hints(hint).get(name, Any) if is_dataclass(hint) else Any
    words = {int: "an integer", float: "a number", bool: "true or false", str: "a text"}
    rule = next((text for kind, text in words.items() if hint in (kind, kind | None)), None)
    if rule is None:
        rule = "as in conf/"
    return ConfigError(f"{key} must be {rule}, but got {key}={'null' if value is None else value}")
