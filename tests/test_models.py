"""The network that ships with the project."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

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


def test_a_batch_can_be_learned_by_heart(model: SmallConvNet) -> None:
    images = torch.rand(20, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    labels = torch.arange(20) % 10
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(30):
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
    assert model(images).argmax(1).tolist() == labels.tolist()


def test_only_a_network_that_normalises_over_the_batch_now_is_said_to(model: SmallConvNet) -> None:
    assert has_batch_norm(model)
    assert not has_batch_norm(model.eval())
    assert not has_batch_norm(nn.Linear(2, 2))
