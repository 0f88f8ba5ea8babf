"""Pictures for the eye: prepared samples, and which class was taken for which."""

from __future__ import annotations

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
    """Return the first samples of the coming epoch, each as stored and, beside it, as trained on.

    They are prepared here once more: a sample follows from its key.

    Returns:
        uint8 3 x H x W.
    """
    policy, epoch, size = loaders.train.policy, loaders.train.epoch, loaders.num_train
    positions = np.arange(min(num_samples, size))
    pictures = []
    with aside():
        for index in policy.order(positions, epoch, size).tolist():
            key = policy.key(index, epoch)
            stored = loaders.build(key)
            fresh = loaders.finish(stored, key) if loaders.finish else stored
            pictures += [_picture(stored), _picture(fresh)]
    size_of_first = list(pictures[0].shape[-2:])
    alike = [F.resize(picture, size_of_first) for picture in pictures]
    return make_grid(alike, nrow=2 * _PAIRS_A_ROW, pad_value=255)


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

    side = min(20.0, 3 + 0.4 * len(classes))  # inches
    figure = Figure(figsize=(side, side), dpi=100, layout="constrained")
    canvas = FigureCanvasAgg(figure)  # not pyplot, which keeps every figure
    axes = figure.add_subplot(xlabel="predicted class", ylabel="true class")
    share = confusion / confusion.sum(1, keepdim=True).clamp(min=1)
    axes.imshow(share.numpy(), cmap="Blues", vmin=0, vmax=1)
    axes.set_xticks(range(len(classes)), classes, rotation=90)
    axes.set_yticks(range(len(classes)), classes)
    if len(classes) <= 30:
        for (true, predicted), count in np.ndenumerate(confusion.numpy()):
            colour = "white" if share[true, predicted] > 0.5 else "black"
            if count:
                axes.text(predicted, true, str(count), ha="center", va="center", color=colour)
    canvas.draw()
    pixels = np.asarray(canvas.buffer_rgba())[..., :3]
    return torch.from_numpy(pixels.copy()).permute(2, 0, 1)
