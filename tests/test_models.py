"""The network that ships with the project."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import runs
import torch
from torch import nn
from torch.nn import functional as F

from training.checks import ConfigError
from training.models import SmallConvNet, has_batch_norm


@pytest.fixture
def model() -> SmallConvNet:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return SmallConvNet(num_classes=10)


def test_every_image_gets_one_logit_a_class(model: SmallConvNet) -> None:
    assert model(torch.zeros(2, 3, 64, 64)).shape == (2, 10)
    assert SmallConvNet(num_classes=3, in_channels=1)(torch.zeros(2, 1, 64, 64)).shape == (2, 3)


def test_the_default_has_62106_parameters(model: SmallConvNet) -> None:
    assert sum(parameter.numel() for parameter in model.parameters()) == 62_106


def test_the_width_sets_the_channels_of_the_first_convolution() -> None:
    assert SmallConvNet(num_classes=10, width=8)[0].out_channels == 8


@pytest.mark.parametrize("name", ["num_classes", "in_channels", "width"])
def test_a_size_of_nothing_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name} must be a positive integer, but got {name}=0"):
        SmallConvNet(**{"num_classes": 10, name: 0})


def test_images_of_16_pixels_are_the_smallest_that_fit(model: SmallConvNet) -> None:
    assert model.eval()(torch.zeros(1, 3, 16, 16)).shape == (1, 10)
    with pytest.raises(RuntimeError, match="too small"):
        model(torch.zeros(1, 3, 12, 12))


def test_an_image_alone_gets_the_logits_it_gets_in_a_batch_in_evaluation(
    model: SmallConvNet,
) -> None:
    images = torch.rand(4, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    model.eval()
    torch.testing.assert_close(model(images[:1]), model(images)[:1])


def test_logits_are_linear_in_the_mean_of_positive_features(model: SmallConvNet) -> None:
    images = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    *convolutions, _, _, head = model.eval()
    features = nn.Sequential(*convolutions)(images)
    assert features.min() == 0
    means = features.mean(dim=(2, 3))
    torch.testing.assert_close(model(images), means @ head.weight.T + head.bias)


def test_every_parameter_has_a_share_in_the_loss(model: SmallConvNet) -> None:
    images = torch.rand(4, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    loss = F.cross_entropy(model(images), torch.arange(4))
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    assert all(gradient.abs().max() > 0 for gradient in gradients)


def test_only_a_network_that_normalises_over_the_batch_now_is_said_to(model: SmallConvNet) -> None:
    assert has_batch_norm(model)
    assert not has_batch_norm(model.eval())
    assert not has_batch_norm(nn.Linear(2, 2))


@pytest.mark.slow
def test_a_model_of_timm_trains_from_random_weights(tmp_path: Path) -> None:
    pytest.importorskip("timm")
    name = "model.model_name=test_resnet"  # the smallest that it has

    (row,) = runs.train(tmp_path, "model=timm", name, "trainer.fast_dev_run=true")

    assert math.isfinite(row["train_loss"]) and math.isfinite(row["val_loss"])


@pytest.mark.slow
def test_a_model_that_timm_does_not_have_is_a_line(tmp_path: Path) -> None:
    pytest.importorskip("timm")

    with pytest.raises(ConfigError, match=r"^model: .*resnet19") as raised:
        runs.train(tmp_path, "model=timm", "model.model_name=resnet19")

    assert "\n" not in str(raised.value)
