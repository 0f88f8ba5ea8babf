"""Imagenette (fast.ai): photos of ten classes of ImageNet, 9,469 for training and 3,925 more."""

from __future__ import annotations

from pathlib import Path

import torchvision
from torchvision import datasets

from training.checks import ConfigError
from training.data.image_folder import ImageFolder


class Imagenette(ImageFolder):
    """torchvision's Imagenette: it fetches and unpacks, the files are read as an image folder.

    Args:
        root: where it lies, or is put.
        split: `train` or `val`.
        size: `full`, `320px` or `160px`: the shorter side of the images.
        download: fetch it where it is not there.
        on_error: as in `ImageFolder`.

    Raises:
        ValueError, RuntimeError: an argument breaks a rule, or the files are not there.
    """

    def __init__(
        self,
        root: str,
        split: str,
        size: str = "320px",
        download: bool = False,
        on_error: str = "raise",
    ) -> None:
        if not hasattr(datasets, "Imagenette"):
            raise ConfigError(
                "data=imagenette must have torchvision 0.17 or newer, but this is "
                f"{torchvision.__version__}; data=image_folder reads its files, where they are"
            )
        # torchvision before 0.18 refuses to download what is there already.
        there = (Path(root) / _FOLDERS.get(size, size)).is_dir()
        try:
            found = datasets.Imagenette(
                root, split=split, size=size, download=download and not there
            )
        except RuntimeError as error:
            if download:
                raise
            raise ConfigError(
                f"root must hold Imagenette, but it is not in {root}: data.download=true fetches it"
            ) from error
        super().__init__(str(Path(root) / _FOLDERS[size]), split, on_error=on_error)
        by_folder = dict(zip(found.wnids, found.classes, strict=True))
        # A class has several names; the first is the usual one.
        self.classes = [by_folder[name][0] for name in self.classes]


_FOLDERS = {"full": "imagenette2", "320px": "imagenette2-320", "160px": "imagenette2-160"}
