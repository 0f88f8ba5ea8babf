"""Handwritten digits, shipped with the project: 1,797 images of 8 x 8."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torchvision import tv_tensors

FILE = Path(__file__).with_name("digits.npz")  # digits.md says where it comes from

_MAX_VALUE = 16  # the images count set pixels in blocks of 4 x 4


class Digits:
    """The UCI "Optical Recognition of Handwritten Digits" set.

    Every fifth image, by index, is for validation: 360 of them, against 1,437 for training.

    Args:
        split: `train` or `val`.
        limit: keep the first so many; None keeps all.

    Raises:
        ValueError: an argument breaks a rule above.
    """

    def __init__(self, split: str, limit: int | None = None) -> None:
        if split not in ("train", "val"):
            raise ValueError(f"split must be train or val, but got split={split!r}")
        if limit is not None and (type(limit) is not int or limit < 1):
            raise ValueError(f"limit must be null or a positive integer, but got limit={limit!r}")
        with np.load(FILE, allow_pickle=False) as arrays:
            images, labels = arrays["images"], arrays["labels"]
        is_val = np.arange(len(labels)) % 5 == 0
        chosen = np.flatnonzero(is_val == (split == "val"))[:limit]
        self.images = images[chosen]
        self.labels = labels[chosen]
        self.classes = [str(digit) for digit in range(10)]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return `{"image": uint8 1 x 8 x 8, "label": int}`."""
        image = self.images[index].astype(np.uint16) * 255 // _MAX_VALUE
        return {
            "image": tv_tensors.Image(torch.from_numpy(image.astype(np.uint8))[None]),
            "label": int(self.labels[index]),
        }

    def identity(self) -> str:
        """Return a digest of the images and labels of the split."""
        return sha256(self.images.tobytes() + self.labels.tobytes()).hexdigest()
