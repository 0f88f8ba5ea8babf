"""A small network of the project's own; others are named by `_target_`."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import shorten
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from training.checks import ConfigError, check_minimum, text_of

_MAX_REASON = 300  # characters; the compiler adds its own command and the code that it was given


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


def check_model(model: Any, target: str) -> None:
    """Make sure that what a `_target_` made is a module whose parameters have their shapes.

    Raises:
        ConfigError: it is not.
    """
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"model._target_ must make a torch.nn.Module, but {target} made {type(model).__name__}"
        )
    lazy = [name for name, parameter in model.named_parameters() if is_lazy(parameter)]
    if lazy:
        raise ConfigError(
            f"model must know the shapes of its parameters, but {lazy[0]} of {target} is of a lazy "
            "module; let the model call itself once on an empty batch where it is made"
        )


def forward(model: Callable[[Tensor], Any], images: Tensor) -> Any:
    """Return the output of a model.

    Raises:
        ConfigError: the batch is too small for a norm over it, or the model cannot be compiled.
    """
    try:
        return model(images)
    except RuntimeError as error:
        if any(kind.__module__ == "torch._dynamo.exc" for kind in type(error).__mro__):
            raise not_compiled(error) from error
        raise
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise ConfigError(
            "batch_size must be at least 2 with a norm over the batch that sees one value a "
            f"channel of each sample, and so must a batch, but one holds {len(images)}"
        ) from error


def not_compiled(error: Exception) -> ConfigError:
    """Return what a user should change where torch.compile failed."""
    said, *_ = text_of(error).split("\n\n")  # behind it: how to report a bug of torch's
    return ConfigError(
        "trainer.compile must be false for this model on this machine, but got "
        f"trainer.compile=true: {shorten(said, _MAX_REASON, placeholder=' ...')}; "
        "trainer.compile=false trains without"
    )


def cross_entropy(
    output: Any, labels: Tensor, num_classes: int, label_smoothing: float = 0.0
) -> Tensor:
    """Return the mean cross entropy of a batch.

    Args:
        output: float N x num_classes.
        labels: int64 N, or the share of each class, float N x num_classes.
        num_classes: number of logits.
        label_smoothing: of torch's own.

    Raises:
        ConfigError: the output is something else, or nothing that learns is behind it.
    """
    check_output(output, len(labels), num_classes)
    if torch.is_grad_enabled() and not output.requires_grad:
        raise ConfigError(
            "model must return logits that have a gradient, but none of its parameters that learn "
            "has a part in them"
        )
    return F.cross_entropy(output, labels, label_smoothing=label_smoothing)


def check_output(output: Any, num_samples: int, num_classes: int) -> None:
    """Make sure that a model returned one logit a class for each sample.

    Raises:
        ConfigError: it did not.
    """
    is_tensor = isinstance(output, Tensor)
    if is_tensor and output.is_floating_point() and output.shape == (num_samples, num_classes):
        return
    shape = " x ".join(map(str, output.shape)) if is_tensor else ""
    got = f"{output.dtype} of shape {shape or '()'}" if is_tensor else type(output).__name__
    parts = list(output) if isinstance(output, dict) else getattr(output, "_fields", [])
    if parts:
        got += f" of {', '.join(map(str, parts))}"
    if any("aux" in str(name) for name in parts):
        got += "; +model.aux_logits=false leaves auxiliary ones out, where the model takes it"
    raise ConfigError(
        f"model must return a tensor of floats, samples x data.num_classes, "
        f"{num_samples} x {num_classes} for this batch, but got {got}"
    )


def has_batch_norm(model: nn.Module) -> bool:
    """Say whether a model normalises over the batch while it trains."""
    return any(isinstance(module, _BatchNorm) and module.training for module in model.modules())
