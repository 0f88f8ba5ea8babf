"""Decoding: whatever a file holds arrives as an upright uint8 image, 3 x H x W, RGB."""

from __future__ import annotations

import inspect
import io
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torchvision.io
from PIL import Image, ImageOps, UnidentifiedImageError
from torchvision import tv_tensors

from training.checks import ConfigError

EXTENSIONS = (
    *(".avif", ".bmp", ".gif", ".jfif", ".jpe", ".jpeg", ".jpg", ".pgm", ".png", ".pnm", ".ppm"),
    *(".tif", ".tiff", ".webp"),
)
"""Of image files, in lower case."""

# JPEG by torchvision.io: 0.45 ms against 0.62 ms by Pillow at 500 x 375, 6.0 against 8.8 ms at
# 2000 x 1500, with the same bits. All else by Pillow: at PNG and WebP torchvision.io takes 0.86 of
# its time, but leaves WebP as the camera held it and PNG of 16 bits as it is, and torchvision 0.29
# says that its decoders will go. benchmarks/README.md has the figures.
_decode_jpeg: Any = getattr(torchvision.io, "decode_jpeg", None)
if _decode_jpeg is not None:
    _turns = "apply_exif_orientation" in inspect.signature(_decode_jpeg).parameters
    _decode_jpeg = _decode_jpeg if _turns else None  # torchvision before 0.17

_JPEG = b"\xff\xd8\xff"
_ORIENTATION = 0x0112  # of the tags of EXIF
_ROUNDING = 1e-3  # what half precision makes of 1, or of a sum near it
_BITS_A_SAMPLE = 258  # of the tags of TIFF
_TURNS: dict[int, Callable[[torch.Tensor], torch.Tensor]] = {
    2: lambda image: image.flip(-1),
    3: lambda image: image.flip(-2, -1),
    4: lambda image: image.flip(-2),
    5: lambda image: image.transpose(-2, -1),
    6: lambda image: image.rot90(-1, (-2, -1)),
    7: lambda image: image.flip(-2, -1).transpose(-2, -1),
    8: lambda image: image.rot90(1, (-2, -1)),
}
"""What makes an image C x H x W upright, by its orientation (CIPA DC-008, 4.6.4, tag 274)."""
_SIXTEEN_BITS = ("I", "I;16", "I;16B", "I;16L", "I;16N")  # of a PNG or TIFF; "I" by older Pillows


class UnreadableError(ConfigError):
    """A file that holds no image, or not all of one."""


def decode(data: bytes) -> tv_tensors.Image:
    """Return the image in a file: turned upright as its EXIF or XMP tag says, alpha left out.

    Args:
        data: the bytes of the file.

    Raises:
        UnreadableError: they are no whole image.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd tags in files that are good otherwise
            with Image.open(io.BytesIO(data)) as picture:  # refuses a size that no memory holds
                if _decode_jpeg is not None and data.startswith(_JPEG):
                    return tv_tensors.Image(_upright(_by_torchvision(data), picture))
                return _to_image(picture)
    except UnreadableError:
        raise
    except Exception as error:  # Pillow raises SyntaxError, struct.error and others as well
        raise UnreadableError(f"no whole image: {_reason(error)}") from error


def _by_torchvision(data: bytes) -> torch.Tensor:
    pixels = torch.frombuffer(data, dtype=torch.uint8)
    image: torch.Tensor = _decode_jpeg(pixels, mode=torchvision.io.ImageReadMode.RGB)
    return image


def _upright(image: torch.Tensor, picture: Image.Image) -> torch.Tensor:
    try:
        # By Pillow, not torchvision: that looks at the first APP1 alone, and at no XMP.
        turn = _TURNS.get(picture.getexif().get(_ORIENTATION))
    except Exception:  # of tags that are damaged in a file that is good otherwise
        turn = None
    return image if turn is None else turn(image).contiguous()


def _reason(error: Exception) -> str:
    """Return what is wrong with a file in words that are about the file."""
    if isinstance(error, UnidentifiedImageError):
        return "it begins like no image"
    text = " ".join(str(error).partition("\n")[0].split())
    text = re.sub(r"^\w+, \S+\.cpp:\d+, ", "", text)  # where torchvision was built
    return text or type(error).__name__


def channels_last(shape: Sequence[int]) -> bool:
    """Say whether an image of this shape is H x W x C rather than C x H x W."""
    return len(shape) == 3 and shape[0] not in (1, 3) and shape[2] in (1, 3, 4)


def is_pixel(dtype: np.dtype[Any]) -> bool:
    """Say whether numbers of this type can be those of an image: uint8, or floats torch has."""
    return dtype == np.uint8 or (dtype.kind == "f" and dtype.itemsize <= 8)


def from_array(array: np.ndarray[Any, Any], rgb: bool) -> tv_tensors.Image:
    """Return an array H x W, C x H x W or H x W x C as an image C x H x W, of its own dtype.

    Args:
        array: uint8, or floats from 0 to 1.
        rgb: make three channels of one.

    Raises:
        UnreadableError: it is no image, or there are other floats in it.
    """
    if not is_pixel(array.dtype) or array.ndim not in (2, 3):
        raise UnreadableError(
            "an image must be H x W, C x H x W or H x W x C, of uint8 or floats from 0 to 1, "
            f"but is {array.dtype} of shape {array.shape}"
        )
    if array.dtype.kind == "f":
        inside = (array >= -_ROUNDING) & (array <= 1 + _ROUNDING)
        if not inside.all():  # NaN is not, either
            raise UnreadableError(f"floats must lie in [0, 1], but got {array[~inside][0]}")
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    if array.ndim == 2:
        native = native[None]
    elif channels_last(array.shape):
        native = native.transpose(2, 0, 1)
    image = torch.from_numpy(native)
    return tv_tensors.Image(image.expand(3, -1, -1) if rgb and len(image) == 1 else image)


def _thirty_two_bits(picture: Image.Image) -> bool:
    """Say whether there is no scale for the numbers in a file, in a mode of 32 bits."""
    bits = getattr(picture, "tag_v2", {}).get(_BITS_A_SAMPLE, (16,))
    return picture.mode == "F" or 32 in bits


def _to_image(picture: Image.Image) -> tv_tensors.Image:
    """Return a picture of Pillow's as a tensor; of a moving one, the first frame.

    Raises:
        UnreadableError: it has 32 bits a channel, of which nothing says what is white.
    """
    if picture.mode in ("F", "I") and _thirty_two_bits(picture):
        raise UnreadableError("an image must have 8 or 16 bits a channel, but this one has 32")
    picture = ImageOps.exif_transpose(picture)
    if picture.mode in _SIXTEEN_BITS:
        levels = np.asarray(picture).astype(np.int64).clip(0, 65535) // 256
        picture = Image.fromarray(levels.astype(np.uint8))
    if picture.mode == "P" and "transparency" in picture.info:
        picture = picture.convert("RGBA")  # of which Pillow wants to be told
    pixels = torch.from_numpy(np.array(picture.convert("RGB")))
    return tv_tensors.Image(pixels.permute(2, 0, 1))
