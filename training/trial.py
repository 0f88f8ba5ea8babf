"""One sample through the model before the run: what does not fit is said at once, in a line."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import walk_tb
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from training.checks import ConfigError, reason
from training.config import Config
from training.device import Batch, Preprocess, autocast
from training.loaders import Loaders
from training.models import check_output, forward
from training.optim import check_sparse
from training.randomness import aside
from training.state import Loss

_LIBRARIES = ("torch", "torchvision", "timm")
_OURS = (__name__, "training.models")
_OF_TORCH = (RuntimeError, ValueError, TypeError)
_SWITCH = "use_deterministic_algorithms"
_ENOUGH = 2  # samples, for a norm over the batch

Ready = Callable[[Preprocess, Batch], tuple[Tensor, Tensor]]  # what is done to a batch first
Step = Callable[[nn.Module, Tensor, Tensor], None]


def try_training(
    config: Config, model: nn.Module, loss: Loss, loaders: Loaders, prepare: Preprocess
) -> None:
    """Take a training sample forward and backward, and a validation sample forward.

    Copies do it, so that nothing changes; what cannot be copied is not tried. Neither is a
    sample that cannot be made, which the epoch names.

    Raises:
        ConfigError: the model cannot take the images of the data, or returns no logits, or the
            optimizer cannot take its gradients.
    """

    def step(model: nn.Module, images: Tensor, labels: Tensor) -> None:
        with autocast(prepare.device, config.trainer.precision):
            value = loss(forward(model, images), labels)
        value.backward()
        check_sparse(config.optimizer, model)

    sample = _first_sample(loaders, is_train=True)
    _try(config, model, sample, prepare, Preprocess.for_training, step)
    try_evaluation(config, model, loaders, prepare)


def try_evaluation(config: Config, model: nn.Module, loaders: Loaders, prepare: Preprocess) -> None:
    """Take a validation sample forward; nothing changes.

    Raises:
        ConfigError: the model cannot take the images of the data, or returns no logits.
    """

    def step(model: nn.Module, images: Tensor, labels: Tensor) -> None:
        model.eval()
        with torch.no_grad(), autocast(prepare.device, config.trainer.precision):
            output = forward(model, images)
        check_output(output, len(labels), config.data.num_classes)

    sample = _first_sample(loaders, is_train=False)
    _try(config, model, sample, prepare, Preprocess.for_evaluation, step)


def _first_sample(loaders: Loaders, is_train: bool) -> dict[str, Any] | None:
    """Return a sample as it goes into a batch; None where the first one cannot be made."""
    loader = loaders.train if is_train else loaders.val
    key = loader.policy.key(0, 0)
    try:
        with aside():
            sample = loaders.make(key)[1] if is_train else loaders.build_val(key)
    except Exception:
        return None
    return sample if isinstance(sample, dict) else None  # none of one that was skipped


def _try(
    config: Config,
    model: nn.Module,
    sample: dict[str, Any] | None,
    prepare: Preprocess,
    ready: Ready,
    step: Step,
) -> None:
    """Take a few samples made of one through a step; only what a whole batch fails of is an error.

    A model may hold to one size of a batch.
    """
    if sample is None:
        return
    device = next(model.parameters()).device
    for size in sorted({min(_ENOUGH, config.batch_size), config.batch_size}):
        # Moved by a column each: alike, they would have no variance.
        images = [sample["image"].roll(number, -1) for number in range(size)]
        labels = torch.full((size,), sample["label"], device=device)
        batch = {"image": torch.stack(images).to(device), "label": labels}
        with aside():
            try:
                ours, theirs = copy.deepcopy(model), copy.deepcopy(prepare)
            except Exception:  # whatever a part of the user's raises
                return
            try:
                inputs, targets = ready(theirs, batch)
                with _named(ours, config.model["_target_"], inputs):
                    step(ours, inputs, targets)
                return
            except torch.cuda.OutOfMemoryError:  # the model itself may have room
                return
            except Exception:
                if size == config.batch_size:
                    raise


@contextmanager
def _named(model: nn.Module, target: str, images: Tensor) -> Iterator[None]:
    """Say what failed of a model: in a line, or, of a bug in a user's own code, in a note.

    Raises:
        ConfigError: torch refused the images, or what the model makes of them.
    """
    shape = " x ".join(map(str, images.shape))
    try:
        yield
    except (ConfigError, torch.cuda.OutOfMemoryError):
        raise
    except Exception as error:
        *_, (frame, _) = walk_tb(error.__traceback__)
        # What torch's modules and functions raise of shapes and types. Of a line of the user's own,
        # and of what is raised for any model, it is the traceback that helps.
        of_torch = isinstance(error, _OF_TORCH) and _is_of_library(frame)
        is_other = isinstance(error, RecursionError) or "alloc" in str(error)
        if (not of_torch or is_other) and _SWITCH not in str(error):
            error.add_note(f"in model={target}, tried on images of {shape} before the first step")
            raise
        raise ConfigError(
            f"model must fit images of {shape}, but {target} failed{_place(error, model)}: "
            f"{reason(error)}; {_remedy(str(error), model)}"
        ) from error


def _place(error: Exception, model: nn.Module) -> str:
    """Return in which module, and in which line of the user's, an error was raised."""
    names = {id(module): name for name, module in model.named_modules() if name}
    module, line = "", ""
    for frame, number in walk_tb(error.__traceback__):
        one = frame.f_locals.get("self")
        if id(one) in names:
            module = f" in {names[id(one)]} ({type(one).__name__})"
        if not _is_of_library(frame) and frame.f_globals.get("__name__") not in _OURS:
            line = f", at {Path(frame.f_code.co_filename).name}, line {number}"
    return module + line


def _is_of_library(frame: FrameType) -> bool:
    module = str(frame.f_globals.get("__name__"))
    return any(module == name or module.startswith(f"{name}.") for name in _LIBRARIES)


def _remedy(text: str, model: nn.Module) -> str:
    if _SWITCH in text:
        return "deterministic=false allows it"
    kinds = {weight.dtype for weight in model.parameters() if weight.is_floating_point()}
    if others := kinds - {torch.float32}:
        kind = str(min(others, key=str)).removeprefix("torch.")
        return f"images are float32, and its weights {kind}: model.float() where it is made"
    return (
        "data.image_size, data.prepare and augment set the size of the images, and arguments of "
        "the model how many channels it takes"
    )
