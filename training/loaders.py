"""From the config to the two loaders: training with reuse, validation prepared once."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np
import torch

from reuseloader import FOREVER, ReuseDataLoader, ReuseKey, Substitute, load_tensors, save_tensors
from training.budget import Kept, keep_within, share_in
from training.build import Source
from training.config import Config, ConfigError
from training.distributed import check_same, first_on_machine, ranks
from training.fingerprint import fingerprint, project_code
from training.records import Run
from training.sections import Node, Table
from training.signals import end_workers
from training.sources import check_source, identity_of, labels_of, sizes_of
from training.stages import make_stages
from training.targets import make
from training.twin import twin_of
from training.workers import start_worker


@dataclass(frozen=True, kw_only=True)
class Loaders:
    """The input of a run; as a context manager it ends with its block.

    Attributes:
        train, val: batches `{"image": uint8 N x C x H x W, "label": int64 N}`.
        num_train, num_val: samples of each, in the largest epoch.
        build, finish: the two stages of a training sample; `finish` None leaves it as stored.
        build_val: makes a validation sample. These three are for the training process: the
            loaders have others, which no sample has opened a file of.
        classes: names, by label.
        facts, notes: what the user should know before the first step; the latter are warnings.
    """

    train: ReuseDataLoader
    val: ReuseDataLoader
    num_train: int
    num_val: int
    build: Callable[[ReuseKey], Any]
    finish: Callable[[Any, ReuseKey], Any] | None
    build_val: Callable[[ReuseKey], Any]
    classes: list[str]
    facts: list[str]
    notes: list[str]

    def close(self) -> None:
        """End the workers, and let other processes use the folders of the samples."""
        self.train.close()
        self.val.close()

    def make(self, key: ReuseKey) -> tuple[Any, Any]:
        """Return a training sample as it is stored, and as it is trained on."""
        stored = self.build(key)
        if isinstance(stored, Substitute):
            stored = stored.sample
        return stored, stored if self.finish is None else self.finish(stored, key)

    def __enter__(self) -> Loaders:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            end_workers()  # nothing waits for the samples that they are at
        self.close()

    @property
    def num_first(self) -> int:
        """Training samples of epoch 0."""
        assert self.train.order is not None
        return self.train.order.sizes.at(0)

    @property
    def num_batches(self) -> dict[int, int]:
        """Batches of a training epoch, by the first epoch that has so many."""
        assert self.train.order is not None
        return {epoch: self.train.num_batches(epoch) for epoch in self.train.order.sizes.epochs}


def make_loaders(run: Run, device: torch.device, drop_single: bool) -> Loaders:
    """Make both loaders; a few samples are built, to find out how large they are.

    Args:
        run: its config and curriculum say what to make, its cache folder where to store.
        device: where the batches will go; for CUDA they lie in pinned memory.
        drop_single: leave out a last training batch of one sample, which has no variance for
            BatchNorm to normalise by.

    Raises:
        ConfigError: a node cannot be made, or the data does not fit the config.
    """
    config = run.config
    train, val = _make_sources(config)
    stages = make_stages(config, run.curriculum, train, val)
    here = twin_of(stages)
    sizes = _sizes(config, train)
    marks = _record_marks(run, train, val)
    coming = {first: size for first, size in sizes.items() if first < config.epochs or first == 0}
    single = _leaving_one(config, {*coming.values()}) if drop_single else []
    share = share_in(run.cache)
    options = _options(config, device)
    loaders = Loaders(
        num_train=max(coming.values()),
        num_val=len(val),
        build=here.build,
        finish=here.finish,
        build_val=here.build_val,
        classes=list(train.classes),
        facts=_facts(config, coming),
        notes=_notes(config, run.curriculum, val, _epochs_of(single, coming)),
        train=_make_loader(
            stages.build,
            sizes,
            run.cache / "train",
            block_size=getattr(train, "block_size", 1),
            lifetime=config.lifetime,
            shuffle=True,
            drop_last=config.loader.drop_last,
            min_batch_size=2 if single else 1,
            fingerprint=_fingerprint(run, config.data.train, marks["data.train"], stored=True),
            finish=stages.finish,
            remove_used=share < 1,
            prefetch=getattr(train, "prefetch", None),
            **options,
        ),
        val=_make_loader(
            stages.build_val,
            len(val),
            run.cache / "val",
            lifetime=FOREVER,
            fingerprint=_fingerprint(run, config.data.val, marks["data.val"], stored=False),
            prefetch=getattr(val, "prefetch", None),
            **options,
        ),
    )
    _keep_within_disk(run, loaders, share)
    return loaders


def _make_sources(config: Config) -> tuple[Source, Source]:
    """Make the sources of training and validation, once on a machine where they must be fetched."""
    _check_shares(config)
    with first_on_machine():  # which may download or unpack
        train = _make_source(config.data.train, "data.train", config)
        val = _make_source(config.data.val, "data.val", config)
    if list(val.classes) != list(train.classes):
        raise ConfigError(
            "data.val must have the classes of data.train, but got "
            f"{', '.join(val.classes)} against {', '.join(train.classes)}"
        )
    return train, val


def _record_marks(run: Run, train: Source, val: Source) -> dict[str, str]:
    """Write down the marks of data and code, which have to be the same on all ranks."""
    marks = {
        "data.train": identity_of(train, "data.train"),
        "data.val": identity_of(val, "data.val"),
        "code": project_code(run.config),
    }
    check_same(marks)
    run.record_inputs(marks)
    return marks


def _fingerprint(run: Run, node: Node, mark: str, stored: bool) -> str:
    """Return what tells stored samples from those of another build; it stands in each of them."""
    text = fingerprint(run.config, run.curriculum, node, mark, stored=stored)
    has_secret = run.redact(text) != text
    return sha256(text.encode()).hexdigest() if has_secret else text


def _keep_within_disk(run: Run, loaders: Loaders, share: float) -> None:
    """Let each loader store what the disk has room for, and say how much that is."""
    val, train = loaders.val, loaders.train
    said, fits = keep_within(
        run.cache,
        run.config.cache.max_bytes,
        [
            Kept(name="validation", loader=val, build=loaders.build_val, size=loaders.num_val),
            Kept(name="training", loader=train, build=loaders.build, size=loaders.num_train),
        ],
        share,
    )
    (loaders.facts if fits else loaders.notes).append(said)


def _make_loader(*arguments: Any, **options: Any) -> ReuseDataLoader:
    try:
        return ReuseDataLoader(*arguments, save=save_tensors, load=load_tensors, **options)
    except ValueError as error:
        # The folder: the rest has been checked.
        said = re.sub(r"\bdirectory(?= must |=)", "cache.directory", str(error))
        raise ConfigError(said) from error


def _make_source(node: Node, place: str, config: Config) -> Source:
    source: Source = make(node, place)
    check_source(source, place, config.data.num_classes)
    if len(source) < ranks().world_size:
        raise ConfigError(
            f"{place} must hold at least one sample for each of {ranks().world_size} ranks, "
            f"but it holds {len(source)}"
        )
    return source


def _check_shares(config: Config) -> None:
    """Refuse two values of what divides a folder: some of its files would be in both parts."""
    given = [node.get("val_share") for node in (config.data.train, config.data.val)]
    if None not in given and given[0] != given[1]:
        raise ConfigError(
            f"data.val.val_share must be data.train.val_share, {given[0]}, but got "
            f"data.val.val_share={given[1]}; give data.train.val_share alone, which counts for both"
        )


def _sizes(config: Config, train: Source) -> dict[int, int]:
    """Return first epoch -> number of training samples from there on."""
    batch_size, overfit = config.batch_size, config.trainer.overfit_batches
    sizes = sizes_of(train)
    if overfit is not None:
        most = overfit * batch_size * ranks().world_size
        sizes = {epoch: min(number, most) for epoch, number in sizes.items()}
    least = min(sizes.values())
    if config.loader.drop_last and batch_size > math.ceil(least / ranks().world_size):
        raise ConfigError(
            f"batch_size must be at most the number of training samples, {least}, with "
            f"loader.drop_last=true, but got batch_size={batch_size}"
        )
    return sizes


def _leaving_one(config: Config, sizes: set[int]) -> list[int]:
    """Return the sizes of epochs whose last batch, not their only one, would be of one sample."""
    own = {size: math.ceil(size / ranks().world_size) for size in sorted(sizes)}
    if config.loader.drop_last or config.batch_size == 1 or 1 in own.values():
        return []
    return [size for size, num in own.items() if num % config.batch_size == 1]


def _facts(config: Config, coming: dict[int, int]) -> list[str]:
    facts = [f"epochs from {first} on: {num} samples" for first, num in coming.items() if first]
    for first, row in (config.curriculum.table or {}).items():
        values = ", ".join(f"{name}={value}" for name, value in row.items())
        facts.append(f"epochs from {first} on: {values}")
    return facts


def _epochs_of(sizes: list[int], coming: dict[int, int]) -> str:
    """Name the epochs of some sizes."""
    if sizes and {*sizes} == {*coming.values()}:
        return "each epoch"
    return f"an epoch of {' or '.join(map(str, sizes))} samples" if sizes else ""


def _notes(config: Config, table: Table, val: Source, single: str) -> list[str]:
    notes = []
    if single:
        rank = "" if ranks().is_single else " of each rank"
        notes.append(
            f"{single} leaves out its last batch{rank}, of one sample: BatchNorm needs two"
        )
    if _is_without_effect(config, table):
        notes.append(
            "curriculum.table sets magnitude, which no transform of augment follows: write "
            "${times:0.4,${augment.magnitude}} where one should"
        )
    labels = labels_of(val)
    if labels is not None:
        present = np.unique(labels)
        missing = [name for label, name in enumerate(val.classes) if label not in present]
        if missing:
            notes.append(f"validation holds no sample of class {', '.join(missing)}")
    return notes


def _is_without_effect(config: Config, table: Table) -> bool:
    """Say whether a curriculum over `magnitude` changes nothing but that number."""
    rows = config.curriculum.table or {}
    changes = [row["magnitude"] for row in rows.values() if "magnitude" in row]
    if all(value == config.augment.magnitude for value in changes):
        return False
    return table[0].keys() == rows[0].keys()  # else it has what follows from it


def _options(config: Config, device: torch.device) -> dict[str, Any]:
    options: dict[str, Any] = {
        "batch_size": config.batch_size,
        "seed": config.seed,
        "num_replicas": ranks().world_size,
        "rank": ranks().rank,
        "verify": config.cache.verify,
        "num_workers": config.num_workers,
        "pin_memory": device.type == "cuda",
    }
    if config.num_workers > 0:
        options |= {
            "prefetch_factor": config.loader.prefetch_factor,
            "persistent_workers": config.loader.persistent_workers,
            "multiprocessing_context": config.loader.multiprocessing_context,
            "worker_init_fn": start_worker,
        }
    return options
