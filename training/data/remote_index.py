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
    except FileNotFoundError as error:
        if store.url.startswith(("http:", "https:")):
            raise ConfigError(
                f"{store.url} is a web server, which cannot be listed: train.csv and val.csv must "
                f"lie there, but {split}.csv does not"
            ) from error
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


def _written(data: bytes, place: str) -> list[tuple[str, int, str, str]]:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ConfigError(f"{place}, line {line}: must be UTF-8") from error
    reader = csv.DictReader(io.StringIO(text, newline=""))
    try:
        missing = {"path", "num_bytes", "label"} - set(reader.fieldnames or ())
        if missing:
            raise ConfigError(f"{place} must have a column {min(missing)} in its first line")
        return [_row(row, f"{place}, line {reader.line_num}") for row in reader]
    except csv.Error as error:
        raise ConfigError(f"{place}, line {reader.reader.line_num}: {error}") from error


def _row(row: dict[str, Any], place: str) -> tuple[str, int, str, str]:
    name, num_bytes, label = row["path"], row["num_bytes"], row["label"]
    if not name or not label or not _is_length(num_bytes or ""):
        raise ConfigError(f"{place}: must have a path, a length in bytes and a label")
    if None in row or None in row.values():
        raise ConfigError(f"{place}: must have as many fields as the first line")
    if not name.lower().endswith(_KINDS):
        raise ConfigError(f"{place}: {name} must be an image or end in .npy")
    return name, int(num_bytes), label, row.get("sha256") or _NO_DIGEST


def _is_length(text: str) -> bool:
    return text.isdecimal() and len(text) <= 18  # which 64 bits hold
