"""A small network of the project's own; others are named by `_target_`."""

from __future__ import annotations

from torch import nn


class SmallConvNet(nn.Sequential):
    """Four convolutions with stride 2 between them, then a mean over the image.

    Args:
        num_classes: number of logits.
        in_channels: channels of the image.
        width: channels of the first convolution; each later one has twice as many.

    Input: float N x in_channels x H x W, H and W at least 16. Output: float N x num_classes.
    """

    def __init__(self, num_classes: int, in_channels: int = 3, width: int = 16) -> None:
        widths = [width, 2 * width, 4 * width, 8 * width]
        blocks = [
            layer
            for before, after in zip([in_channels, *widths], widths, strict=False)
            for layer in _block(before, after)
        ]
        super().__init__(
            *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], num_classes)
        )


def _block(in_channels: int, out_channels: int) -> list[nn.Module]:
    return [
        nn.Conv2d(in_channels, out_channels, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(out_channels),
        nn.ReLU(inplace=True),
    ]
