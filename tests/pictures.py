"""Image files of every kind, made as they are asked for, and what has to come out of them."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def picture(seed: int = 0, size: tuple[int, int] = (12, 8)) -> Image.Image:
    """Return a picture of soft colours, so that a lossy format keeps them nearly."""
    coarse = np.random.default_rng(seed).integers(0, 256, (2, 3, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize(size, Image.Resampling.BILINEAR)


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    """Return the bytes of a file of this format."""
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def write(path: Path, image: Image.Image | None = None, **options: Any) -> Path:
    """Write a picture to a new file, in the format of its extension."""
    path.parent.mkdir(parents=True, exist_ok=True)
    (image or picture(len(path.name))).save(path, **options)
    return path


def class_folders(root: Path, **counts: int) -> Path:
    """Make a folder of PNG files for each class: all of different content."""
    for number, (name, count) in enumerate(counts.items()):
        for index in range(count):
            write(root / name / f"{index}.png", picture(100 * number + index))
    return root
