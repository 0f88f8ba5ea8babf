"""Which records a store holds: from an index file, or from its class folders."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from typing import Any

import numpy as np

from training.checks import ConfigError
from training.data.images import EXTENSIONS
from training.data.store import Store

_KINDS = (*EXTENSIONS, ".npy")
_NO_DIGEST = ""


@dataclass(frozen=True)
class Index:
    """Records, as columns.

    Attributes:
        names: relative to the store's folder.
        num_bytes: their lengths.
        labels: names of their classes.
        digests: SHA-256 of each in hex, empty where it is not known.
    """

    names: np.ndarray[Any, Any]
    num_bytes: np.ndarray[Any, Any]
    labels: list[str]
    digests: np.ndarray[Any, Any]

    def classes(self) -> list[str]:
        """Return the names of the classes in order; numbers come in the order of numbers."""
        names = set(self.labels)
        if all(name.isdecimal() for name in names):
            return sorted(names, key=int)
        return sorted(names)


def read_index(store: Store, split: str) -> Index:
    """Return the records of a split: those in SPLIT.csv, or all below the folder SPLIT.

    Raises:
        ConfigError: there are none, or a line of the index is not as it has to be.
        UnreadableError: the index cannot be fetched.
    """
    try:
        text = store.fetch(f"{split}.csv")
    except FileNotFoundError:
        rows = _listed(store, split)
    else:
        rows = _written(text, f"{store.url}/{split}.csv")
    if not rows:
        raise ConfigError(
            f"{store.url} must hold the file {split}.csv, or records below {split}/CLASS/, "
            "but holds neither"
        )
    names, num_bytes, labels, digests = zip(*rows, strict=True)
    return Index(
        names=np.array([name.encode() for name in names], dtype=np.bytes_),
        num_bytes=np.array(num_bytes, dtype=np.int64),
        labels=list(labels),
        digests=np.array([digest.encode() for digest in digests], dtype=np.bytes_),
    )


def _listed(store: Store, split: str) -> list[tuple[str, int, str, str]]:
    try:
        files = store.sizes(split)
    except (FileNotFoundError, NotImplementedError):
        return []
    rows = []
    for name, num_bytes in files.items():
        parts = name.split("/")[1:]
        hidden = any(part.startswith(".") for part in parts)
        if len(parts) >= 2 and not hidden and name.lower().endswith(_KINDS):
            rows.append((name, num_bytes, parts[0], _NO_DIGEST))
    return rows


def _written(text: bytes, place: str) -> list[tuple[str, int, str, str]]:
    reader = csv.DictReader(io.StringIO(text.decode("utf-8-sig"), newline=""))
    missing = {"path", "num_bytes", "label"} - set(reader.fieldnames or ())
    if missing:
        raise ConfigError(f"{place} must have a column {min(missing)} in its first line")
    rows = []
    for row in reader:
        name, num_bytes, label = row["path"], row["num_bytes"], row["label"]
        if not name or not label or not (num_bytes or "").isdecimal():
            raise ConfigError(
                f"{place}, line {reader.line_num}: must have a path, a length in bytes and a label"
            )
        if not name.lower().endswith(_KINDS):
            raise ConfigError(
                f"{place}, line {reader.line_num}: {name} must be an image or end in .npy"
            )
        rows.append((name, int(num_bytes), label, row.get("sha256") or _NO_DIGEST))
    return rows
