"""Did you mean: names that do not exist, and those that are nearest to them."""

from __future__ import annotations

from pathlib import Path

import pytest

from training.nearest import nearest_target
from training.targets import ALLOWED_PACKAGES, PROJECT


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("training.biuld.build_image", "training.build.build_image"),
        ("training.build.biuld_image", "training.build.build_image"),
        ("trainnig.build.build_image", "training.build.build_image"),
        ("reuseloder.seeded", "reuseloader.seeded"),
        ("torch.nn.Linera", "torch.nn.Linear"),
        ("torch.nn.linear", "torch.nn.Linear"),
        ("torch.optim.Adamw", "torch.optim.AdamW"),
        ("torchvision.transfroms.v2.RandomAfine", "torchvision.transforms.v2.RandomAffine"),
        ("torch.nn.Linear", "torch.nn.Linear"),
        *((path, None) for path in ("torch.lod", "os.system", "nowhere.f", "training.build.zzz")),
        *(
            (path, None)
            for path in ("training.buidl", "torch.nn", "", ".", "torch.nn.", "torch/nn")
        ),
    ],
)
def test_the_nearest_name_that_is_allowed_is_found(path: str, expected: str | None) -> None:
    assert expected == nearest_target(path, ALLOWED_PACKAGES, PROJECT)


def test_a_module_beside_train_py_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "my_nearest_build.py").write_text("def build(): pass\n")
    (tmp_path / "my_broken_build.py").write_text("1/0\n")
    found = nearest_target("my_nearst_build.biuld", (), tmp_path)
    assert found == "my_nearest_build.build"
    assert nearest_target("my_brokn_build.build", (), tmp_path) is None
