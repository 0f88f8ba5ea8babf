"""A transform that no image of a run fits is named; what is wrong in one's own code is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torchvision.transforms import v2

from reuseloader import ReusePolicy
from training.build import compose
from training.checks import ConfigError
from training.samples import CheckedBuild, CheckedFinish

KEY = ReusePolicy(2, seed=7).key(0, 0)
SMALL, LARGE = torch.zeros(1, 8, 8, dtype=torch.uint8), torch.zeros(1, 64, 64, dtype=torch.uint8)
BLUR = v2.GaussianBlur(23, 2.0)  # reflects more of an image at its sides than 8 x 8 have


class Own(v2.Transform):
    def forward(self, *inputs: Any) -> Any:
        return v2.functional.gaussian_blur(inputs[0], [23, 23])


def stages(transform: Callable[[Any], Any]) -> list[Callable[[torch.Tensor], Any]]:
    """Return both stages of a sample, as functions of its image."""
    images: list[torch.Tensor] = []

    def make(*_: Any) -> dict[str, Any]:
        return {"image": transform(images[-1]), "label": 0}

    build, finish = CheckedBuild(make, 1, None), CheckedFinish(make, lambda *_: None)
    return [
        lambda image: (images.append(image), build(KEY)),
        lambda image: (images.append(image), finish({}, KEY)),
    ]


@pytest.mark.parametrize("stage", [0, 1])
def test_a_transform_that_the_first_image_does_not_fit_is_named_in_one_line(stage: int) -> None:
    call = stages(compose([v2.Identity(), BLUR]))[stage]
    with pytest.raises(ConfigError, match="but GaussianBlur cannot be applied") as caught:
        call(SMALL)
    assert "data.image_size" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("stage", [0, 1])
def test_after_a_first_image_that_fits_another_is_an_error_with_its_traceback(stage: int) -> None:
    call = stages(compose([BLUR]))[stage]
    call(LARGE)
    with pytest.raises((RuntimeError, ValueError)) as caught:
        call(SMALL)
    assert not isinstance(caught.value, ConfigError)


def test_a_transform_of_ones_own_keeps_its_traceback() -> None:
    for transform in (Own(), v2.RandomApply([Own()], p=1.0)):
        with pytest.raises((RuntimeError, ValueError)) as caught:
            stages(compose([transform]))[0](SMALL)
        assert not isinstance(caught.value, ConfigError)


def test_an_argument_that_no_image_can_be_transformed_with_is_said_as_such() -> None:
    try:
        turn = v2.RandomAffine(10, interpolation=-1)  # type: ignore[arg-type]
    except KeyError:
        pytest.skip("torchvision 0.16 refuses it at once")
    with pytest.raises(ConfigError, match=r"but RandomAffine cannot be applied") as e:
        stages(compose([turn]))[0](LARGE)
    assert str(e.value).endswith("or give it other arguments")
