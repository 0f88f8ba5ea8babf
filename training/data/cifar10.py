"""CIFAR-10 (Krizhevsky, 2009): 50,000 images of 32 x 32 for training, 10,000 for validation."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import torch
from torchvision import datasets, tv_tensors

from training.checks import ConfigError


class Cifar10:
    """torchvision's CIFAR10.

    Args:
        root: where it lies, or is put.
        split: `train` or `val`, which is what the set calls test.
        download: fetch it where it is not there.

    Raises:
        ValueError: `split` is neither.
        ConfigError: the files are not there, or damaged, and are not to be fetched.
        RuntimeError: they could not be fetched whole.
    """

    def __init__(self, root: str, split: str, download: bool = False) -> None:
        if split not in ("train", "val"):
            raise ValueError(f"split must be train or val, but got split={split!r}")
        try:
            found = datasets.CIFAR10(root, train=split == "train", download=download)
        except RuntimeError as error:
            if download:
                raise
            raise ConfigError(
                f"root must hold CIFAR-10, but it is not in {root}, or damaged: "
                "data.download=true fetches it"
            ) from error
        self.images = torch.from_numpy(found.data).permute(0, 3, 1, 2)
        self.labels = torch.tensor(found.targets)
        self.classes = list(found.classes)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return `{"image": uint8 3 x 32 x 32, "label": int}`."""
        return {
            "image": tv_tensors.Image(self.images[index].clone()),
            "label": int(self.labels[index]),
        }

    def identity(self) -> str:
        """Return a digest of the images, labels and classes of the split."""
        total = sha256(repr((self.classes, tuple(self.images.shape))).encode())
        total.update(self.images.permute(0, 2, 3, 1).numpy().tobytes())
        total.update(self.labels.numpy().tobytes())
        return total.hexdigest()
