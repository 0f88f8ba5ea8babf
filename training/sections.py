"""The sections of the config that describe data and input; `conf/config.yaml` explains them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from training.checks import check, check_minimum

MAX_IMAGE_SIZE = 2**15  # 3 GB a sample; a number with a digit too many ends in torch otherwise

Node = dict[str, Any]  # a mapping with `_target_`: what to call, and with which arguments
Table = dict[int, dict[str, Any]]  # first epoch -> parameter -> value


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
    url: str | None = None
    size: Any = None
    storage_options: dict[str, Any] | None = None
    cache_bytes: int | None = None
    download: bool = False
    on_error: str = "raise"
    image_size: int = 64

    def __post_init__(self) -> None:
        holds = 1 <= self.image_size <= MAX_IMAGE_SIZE
        rule = f"an integer from 1 to {MAX_IMAGE_SIZE}"
        check("data.image_size", self.image_size, holds, rule)
        known = self.on_error in ("raise", "skip")
        check("data.on_error", self.on_error, known, "raise or skip")
        check("data.num_classes", self.num_classes, self.num_classes >= 2, "at least 2")
        most = self.num_classes
        check("data.num_classes", most, most < 2**31, "below 2^31")
        kept = self.cache_bytes
        holds = kept is None or 0 <= kept < 2**63
        check("data.cache_bytes", kept, holds, "null or a number of bytes from 0 up, below 2^63")
        finite = all(math.isfinite(mean) for mean in self.mean)
        check("data.mean", self.mean, finite, "a list of finite numbers")
        positive = all(0 < std < math.inf for std in self.std)
        check("data.std", self.std, positive, "a list of positive numbers")
        same = len(self.mean) == len(self.std)
        check("data.mean", self.mean, same, f"as long as data.std ({len(self.std)} channels)")


@dataclass(frozen=True, kw_only=True)
class AugmentConfig:
    """Transforms by name: `stored` run once a generation, `fresh` at every use.

    With `replaces_prepare` the stored ones get the raw item, and `data.prepare` is for validation.
    With `store_all` the fresh ones run after the stored ones, once a generation as well: what reuse
    costs in accuracy without a fresh stage.
    """

    magnitude: float = 1.0
    replaces_prepare: bool = False
    store_all: bool = False
    stored: dict[str, Any]
    fresh: dict[str, Any]

    def __post_init__(self) -> None:
        finite = math.isfinite(self.magnitude)
        check("augment.magnitude", self.magnitude, finite, "a finite number")


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
        most = self.prefetch_factor
        check("loader.prefetch_factor", most, most <= 1000, "at most 1000")
        start = self.multiprocessing_context
        methods = (None, "fork", "spawn", "forkserver")
        rule = "null, fork, spawn or forkserver"
        check("loader.multiprocessing_context", start, start in methods, rule)


@dataclass(frozen=True, kw_only=True)
class CacheConfig:
    """Where stored samples lie; `directory` None is a folder inside the run folder."""

    directory: str | None = None
    keep: bool = False
    max_bytes: float | None = None
    verify: float = 0.0

    def __post_init__(self) -> None:
        most = self.max_bytes
        holds = most is None or 0 <= most < math.inf
        check("cache.max_bytes", most, holds, "null or a number of bytes from 0 up")
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
