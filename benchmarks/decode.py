"""Decoding images: torchvision.io beside Pillow, processor time on one thread.

    python benchmarks/decode.py /usr/share/backgrounds/gnome/*.webp

The pictures given are scaled and encoded anew, so that every format holds the same ones.
"""

from __future__ import annotations

import argparse
import io
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from common import one_thread, say_where, table
from PIL import Image, ImageOps
from torchvision.io import ImageReadMode, decode_image

CASES = {
    "JPEG 500 x 375": ("JPEG", (500, 375), 99),
    "JPEG 2000 x 1500": ("JPEG", (2000, 1500), 6),
    "PNG 500 x 375": ("PNG", (500, 375), 99),
    "WebP 500 x 375": ("WEBP", (500, 375), 99),
}


def by_torchvision(data: bytes) -> torch.Tensor:
    pixels = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    return decode_image(pixels, ImageReadMode.RGB, apply_exif_orientation=True)


def by_pillow(data: bytes) -> torch.Tensor:
    picture = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1)


def cpu_ms(decode: Callable[[bytes], Any], files: list[bytes], repeats: int = 5) -> float:
    """Return the processor time of a file, of the fastest pass over all of them."""
    times = []
    for _ in range(repeats):
        start = time.thread_time()
        for data in files:
            decode(data)
        times.append((time.thread_time() - start) / len(files))
    return 1000 * min(times)


def encoded(picture: Image.Image, kind: str, size: tuple[int, int]) -> bytes:
    buffer = io.BytesIO()
    picture.resize(size).save(buffer, kind, quality=90)
    return buffer.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("pictures", nargs="+")
    args = parser.parse_args()
    one_thread()
    warnings.simplefilter("ignore")  # torchvision 0.29 says that its decoders will go
    pictures = [Image.open(path).convert("RGB") for path in args.pictures]
    rows = []
    for name, (kind, size, count) in CASES.items():
        files = [encoded(picture, kind, size) for picture in pictures[:count]]
        same = all(torch.equal(by_torchvision(data), by_pillow(data)) for data in files)
        ours, theirs = (cpu_ms(decode, files) for decode in (by_torchvision, by_pillow))
        rows.append([name, f"{ours:.2f} ms", f"{theirs:.2f} ms", "yes" if same else "no"])
    print(table(["", "torchvision.io", "Pillow", "same bits"], rows))
    say_where()


if __name__ == "__main__":
    main()
