"""Pictures for the eye: prepared samples, and which class was taken for which."""

from __future__ import annotations

import logging
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as F
from torchvision.utils import make_grid

from training.loaders import Loaders
from training.randomness import aside
from training.tracking import Trackers

_PAIRS_A_ROW = 4
_MAX_NAMES = 100  # that can be read beside a confusion matrix

# matplotlib tells of its first search for fonts, and Hydra prints what any package tells.
logging.getLogger("matplotlib.font_manager").setLevel(logging.WARNING)


def show_samples(trackers: Trackers, loaders: Loaders, num_samples: int, step: int) -> None:
    """Show the first samples of the coming epoch, as stored and as trained on."""
    if num_samples > 0:
        trackers.picture("input/stored_and_fresh", lambda: sample_grid(loaders, num_samples), step)


def show_confusion(
    trackers: Trackers, confusion: Tensor | None, classes: list[str], step: int
) -> None:
    """Show which class was taken for which, where there has been an evaluation."""
    if confusion is not None:
        trackers.picture("val/confusion", lambda: confusion_picture(confusion, classes), step)


def sample_grid(loaders: Loaders, num_samples: int) -> Tensor:
    """Return the first samples of the coming epoch in pairs: as stored, and as trained on.

    They are prepared here once more: a sample follows from its key.

    Returns:
        uint8 3 x H x W.
    """
    policy, epoch, order = loaders.train.policy, loaders.train.epoch, loaders.train.order
    assert order is not None  # the loader has no sampler of the user's
    positions = np.arange(min(num_samples, order.length(epoch)))
    pairs = []
    with aside():
        for index in order.index(positions, epoch).tolist():
            key = policy.key(index, epoch)
            stored, fresh = loaders.make(key)
            pairs.append([_picture(stored), _picture(fresh)])
    side = list(pairs[0][0].shape[-2:])  # of what differs in size, the first one decides
    alike = [[F.resize(picture, side, antialias=True) for picture in pair] for pair in pairs]
    joined = [make_grid(pair, nrow=2, padding=1, pad_value=255) for pair in alike]
    return make_grid(joined, nrow=_PAIRS_A_ROW, padding=4, pad_value=255)


def _picture(sample: dict[str, Any]) -> Tensor:
    image = F.to_dtype(sample["image"].as_subclass(Tensor), torch.uint8, scale=True)
    return image if image.shape[0] == 3 else image[:1].expand(3, -1, -1)


def confusion_picture(confusion: Tensor, classes: list[str]) -> Tensor:
    """Draw a confusion matrix, int64 true class x predicted class.

    Returns:
        uint8 3 x H x W.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    num = len(classes)
    side = min(20.0, 3 + 0.4 * num)  # inches
    figure = Figure(figsize=(side, side), dpi=100, layout="constrained")
    canvas = FigureCanvasAgg(figure)  # not pyplot, which keeps every figure
    axes = figure.add_subplot(xlabel="predicted class", ylabel="true class")
    share = confusion / confusion.sum(1, keepdim=True).clamp(min=1)
    axes.imshow(share.numpy(), cmap="Blues", vmin=0, vmax=1)
    ticks = range(0, num, math.ceil(num / _MAX_NAMES))  # of more, every so many
    names = [_shortened(classes[label]) for label in ticks]
    rotation = 90 if max(map(len, names)) > 3 else 0
    axes.set_xticks(ticks, names, rotation=rotation, parse_math=False)  # a $ is a $
    axes.set_yticks(ticks, names, parse_math=False)
    if num <= 30:
        for (true, predicted), count in np.ndenumerate(confusion.numpy()):
            colour = "white" if share[true, predicted] > 0.5 else "black"
            if count:
                axes.text(predicted, true, str(count), ha="center", va="center", color=colour)
    canvas.draw()
    pixels = np.asarray(canvas.buffer_rgba())[..., :3]
    return torch.from_numpy(pixels.copy()).permute(2, 0, 1)


def _shortened(name: str) -> str:
    return name if len(name) <= 24 else f"{name[:11]}...{name[-10:]}"
