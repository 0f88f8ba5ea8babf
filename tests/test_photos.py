"""Real photographs and drawings of Debian's packages, from the file to a trained step."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from runs import train

from training.data.image_folder import ImageFolder

STAMPS = Path("/usr/share/tuxpaint/stamps")  # Debian's tuxpaint-stamps-default
WALLPAPERS = Path("/usr/share/backgrounds")  # of gnome-backgrounds

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not STAMPS.is_dir(), reason="tuxpaint-stamps-default of Debian is not installed"
    ),
]


def test_every_picture_arrives_as_an_upright_rgb_image() -> None:
    source = ImageFolder(str(STAMPS), "train")
    shapes = set()
    for index in range(len(source)):
        image = source[index]["image"]
        assert (image.dtype, image.shape[0]) == (torch.uint8, 3)
        shapes.add(image.shape[1:])
    assert len(source) > 300
    assert len(shapes) > 100  # of all sizes


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_resnet_trains_on_them_at_224(num_workers: int, tmp_path: Path) -> None:
    table = train(
        tmp_path / "run",
        *("data=image_folder", f"data.root={STAMPS}", "augment=photos", "model=resnet18"),
        *(f"num_workers={num_workers}", "lifetime=2", "batch_size=16"),
        "trainer.limit_batches=3",
    )
    assert [row["built"] + row["reused"] for row in table] == [48, 48]
    assert all(torch.isfinite(torch.tensor(row["train_loss"])) for row in table)


@pytest.mark.skipif(not WALLPAPERS.is_dir(), reason="gnome-backgrounds of Debian is not installed")
def test_photos_of_several_formats_lie_in_one_folder(tmp_path: Path) -> None:
    found = [p for p in WALLPAPERS.rglob("*") if p.suffix in (".webp", ".jpg", ".png")]
    if len(found) < 4:
        pytest.skip("no wallpapers are installed")
    (tmp_path / "wallpaper").mkdir()
    (tmp_path / "stamp").mkdir()
    for path in found[:8]:
        (tmp_path / "wallpaper" / path.name).symlink_to(path)
    for path in sorted(STAMPS.rglob("*.png"))[:8]:
        (tmp_path / "stamp" / path.name).symlink_to(path)
    source = ImageFolder(str(tmp_path), "train")
    assert {source[index]["label"] for index in range(len(source))} == {0, 1}
    assert max(source[index]["image"].shape[-1] for index in range(len(source))) >= 1920
