"""A small network of the project's own; others are named by `_target_`."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from training.checks import check_minimum


class SmallConvNet(nn.Sequential):
    """A coarse first convolution, three more with pooling between, then a mean over the image.

    Args:
        num_classes: number of logits.
        in_channels: channels of the image.
        width: channels of the first convolution.

    Raises:
        ValueError: an argument is not a positive integer.

    Input: float N x in_channels x H x W, H and W at least 16. Output: float N x num_classes.
    """

    def __init__(self, num_classes: int, in_channels: int = 3, width: int = 16) -> None:
        check_minimum("num_classes", num_classes, 1)
        check_minimum("in_channels", in_channels, 1)
        check_minimum("width", width, 1)
        super().__init__(
            *_convolution(in_channels, width, kernel_size=5, stride=4),
            *_convolution(width, 2 * width, kernel_size=3),
            nn.MaxPool2d(2),
            *_convolution(2 * width, 4 * width, kernel_size=3),
            nn.MaxPool2d(2),
            *_convolution(4 * width, 4 * width, kernel_size=3),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(4 * width, num_classes),
        )


def _convolution(
    in_channels: int, out_channels: int, kernel_size: int, stride: int = 1
) -> list[nn.Module]:
    padding = kernel_size // 2
    return [
        nn.Conv2d(in_channels, out_channels, kernel_size, stride, padding, bias=False),
        nn.BatchNorm2d(out_channels),
        nn.ReLU(),
    ]


def has_batch_norm(model: nn.Module) -> bool:
    """Say whether a model normalises over the batch while it trains."""
    return any(isinstance(module, _BatchNorm) and module.training for module in model.modules())
