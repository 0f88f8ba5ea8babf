"""Whatever a file holds arrives as an upright RGB image."""

from __future__ import annotations

import struct
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from pictures import encoded, picture
from PIL import Image
from torchvision import tv_tensors

from training.data import images
from training.data.images import UnreadableError, decode

RGB = picture()


def pixels(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)


def with_alpha(image: Image.Image) -> Image.Image:
    image = image.copy()
    width, height = image.size
    image.putalpha(Image.fromarray(np.arange(width * height).reshape(height, width).astype("u1")))
    return image


GREY, PALETTE, CMYK = RGB.convert("L"), RGB.quantize(16), RGB.convert("CMYK")
SIXTEEN = Image.fromarray((np.asarray(GREY).astype(np.uint16) << 8) + 77)
LOSSLESS = {
    "png": (encoded(RGB, "PNG"), RGB),
    "grey png": (encoded(GREY, "PNG"), GREY),
    "black and white png": (encoded(RGB.convert("1"), "PNG"), RGB.convert("1")),
    "palette png": (encoded(PALETTE, "PNG"), PALETTE),
    "palette png with a transparent colour": (encoded(PALETTE, "PNG", transparency=3), PALETTE),
    "palette png with alpha": (encoded(PALETTE, "PNG", transparency=bytes(range(16))), PALETTE),
    "alpha png": (encoded(with_alpha(RGB), "PNG"), RGB),
    "grey alpha png": (encoded(with_alpha(RGB).convert("LA"), "PNG"), GREY),
    "16 bit png": (encoded(SIXTEEN, "PNG"), GREY),
    "16 bit tiff": (encoded(SIXTEEN, "TIFF"), GREY),
    "webp": (encoded(RGB, "WEBP", lossless=True), RGB),
    "alpha webp": (encoded(with_alpha(RGB), "WEBP", lossless=True, exact=True), RGB),
    "gif": (encoded(PALETTE, "GIF"), PALETTE),
    "moving gif": (encoded(PALETTE, "GIF", save_all=True, append_images=[GREY]), PALETTE),
    "bmp": (encoded(RGB, "BMP"), RGB),
    "tiff": (encoded(RGB, "TIFF"), RGB),
    "cmyk tiff": (encoded(CMYK, "TIFF"), CMYK),
    "ppm": (encoded(RGB, "PPM"), RGB),
}
LOSSY = {
    "jpeg": encoded(RGB, "JPEG", quality=95),
    "grey jpeg": encoded(GREY, "JPEG", quality=95),
    "cmyk jpeg": encoded(CMYK, "JPEG", quality=95),
    "progressive jpeg": encoded(RGB, "JPEG", quality=95, progressive=True),
}


@pytest.mark.parametrize("kind", LOSSLESS)
def test_every_kind_of_file_arrives_as_rgb_to_the_bit(kind: str) -> None:
    data, expected = LOSSLESS[kind]
    image = decode(data)
    assert type(image) is tv_tensors.Image
    assert (image.dtype, image.shape) == (torch.uint8, (3, 8, 12))
    assert torch.equal(image.as_subclass(torch.Tensor), pixels(expected))


@pytest.mark.parametrize("kind", LOSSY)
def test_a_jpeg_has_the_same_bits_by_either_decoder(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = decode(LOSSY[kind])
    assert (type(image), image.dtype) == (tv_tensors.Image, torch.uint8)
    reference = GREY if "grey" in kind else RGB
    distance = (image.int() - pixels(reference).int()).abs().float().mean()
    assert distance < 6  # of 255, for a lossy format
    monkeypatch.setattr(images, "_decode_jpeg", None)
    assert torch.equal(decode(LOSSY[kind]), image)


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_camera_held_in_any_way_gives_an_upright_image(
    orientation: int, kind: str, fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not fast:
        monkeypatch.setattr(images, "_decode_jpeg", None)
    # What the sensor saw, from the upright picture: the table of the EXIF standard, read backwards.
    seen: Any = {
        1: lambda a: a,
        2: lambda a: a[:, ::-1],
        3: lambda a: a[::-1, ::-1],
        4: lambda a: a[::-1],
        5: lambda a: a.transpose(1, 0, 2),
        6: lambda a: np.rot90(a, 1),
        7: lambda a: a[::-1, ::-1].transpose(1, 0, 2),
        8: lambda a: np.rot90(a, -1),
    }
    held = Image.fromarray(np.ascontiguousarray(seen[orientation](np.asarray(RGB))))
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"WEBP": {"lossless": True}, "JPEG": {"quality": 100, "subsampling": 0}}.get(kind, {})
    image = decode(encoded(held, kind, exif=exif, **options))
    assert image.shape == (3, 8, 12)
    distance = (image.int() - pixels(RGB).int()).abs().max()
    assert distance <= (6 if kind == "JPEG" else 0)


def segment(content: bytes) -> bytes:
    """Return an APP1 segment of a JPEG."""
    return b"\xff\xe1" + struct.pack(">H", len(content) + 2) + content


def exif(kind: int, value: bytes) -> bytes:
    """Return EXIF, big-endian, with an orientation of a type: 3 is SHORT, 4 LONG."""
    return (
        b"Exif\0\0MM\0*\0\0\0\x08\0\x01" + struct.pack(">HHI", 0x0112, kind, 1) + value + bytes(4)
    )


def xmp(orientation: int) -> bytes:
    """Return XMP with an orientation."""
    return (
        b'http://ns.adobe.com/xap/1.0/\0<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF '
        b'xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#"><rdf:Description '
        b'xmlns:tiff="http://ns.adobe.com/tiff/1.0/" tiff:Orientation="%d"/></rdf:RDF></x:xmpmeta>'
        % orientation
    )


SHORT = segment(exif(3, struct.pack(">HH", 6, 0)))
TAGS = {
    "XMP before EXIF": segment(xmp(1).replace(b"Orientation", b"Else")) + SHORT,
    "a LONG": segment(exif(4, struct.pack(">I", 6))),
    "XMP alone": segment(xmp(6)),
}


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("kind", TAGS)
def test_an_orientation_counts_wherever_it_stands(
    kind: str, fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not fast:
        monkeypatch.setattr(images, "_decode_jpeg", None)
    held = encoded(RGB.transpose(Image.Transpose.ROTATE_90), "JPEG", quality=100, subsampling=0)
    image = decode(held[:2] + TAGS[kind] + held[2:])
    assert image.shape == (3, 8, 12)
    assert (image.int() - pixels(RGB).int()).abs().max() <= 6


def test_damaged_tags_leave_a_good_image_as_it_is() -> None:
    damaged = segment(b"Exif\0\0no tags at all")
    data = LOSSY["jpeg"]
    assert torch.equal(decode(data[:2] + damaged + data[2:]), decode(data))


def test_a_small_file_that_claims_a_huge_image_is_refused() -> None:
    data = LOSSY["jpeg"]
    place = data.index(b"\xff\xc0") + 5  # behind the marker, the length and the precision
    huge = data[:place] + struct.pack(">HH", 65000, 65000) + data[place + 4 :]
    with pytest.raises(UnreadableError, match=r"^no whole image: .*4225000000 pixels.*$"):
        decode(huge)


@pytest.mark.parametrize("kind", ["jpeg", "png"])
@pytest.mark.parametrize("part", [3, 0.6])
def test_what_is_wrong_with_a_file_is_said_without_the_insides_of_a_decoder(
    kind: str, part: float
) -> None:
    data = LOSSY[kind] if kind in LOSSY else LOSSLESS[kind][0]
    with pytest.raises(UnreadableError) as caught:
        decode(data[: part if isinstance(part, int) else int(part * len(data))])
    assert not any(word in str(caught.value) for word in ("/", "BytesIO", ".cpp", "0x"))


@pytest.mark.parametrize("kind", ["jpeg", "progressive jpeg", "png", "webp", "gif"])
@pytest.mark.parametrize("part", [0, 3, 0.3, 0.6])
def test_a_file_that_is_cut_short_is_refused(kind: str, part: float) -> None:
    data = LOSSY[kind] if kind in LOSSY else LOSSLESS[kind][0]
    cut = data[: part if isinstance(part, int) else int(part * len(data))]
    with pytest.raises(UnreadableError, match=r"no whole image: .") as caught:
        decode(cut)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("data", [b"", b"hello", b"<html></html>", bytes(1000), b"\xff\xd8\xff"])
def test_what_is_no_image_is_refused(data: bytes) -> None:
    with pytest.raises(UnreadableError, match=r"no whole image: ."):
        decode(data)


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_a_tiff_of_32_bits_is_refused(dtype: Any) -> None:
    data = encoded(Image.fromarray((np.asarray(GREY) / 255).astype(dtype)), "TIFF")
    with pytest.raises(UnreadableError, match=r"^an image must have 8 or 16 bits a channel, but "):
        decode(data)


def test_nothing_is_said_of_a_good_file() -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for data in [*LOSSY.values(), *(data for data, _ in LOSSLESS.values())]:
            decode(data)
    assert said == []


def test_an_image_owns_its_memory() -> None:
    for data in (LOSSY["jpeg"], LOSSLESS["png"][0]):
        first = decode(data)
        before = first.clone()
        first.zero_()
        assert torch.equal(decode(data), before)
