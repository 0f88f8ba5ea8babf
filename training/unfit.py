"""A transform of torchvision's that cannot be applied to the images of a run, in one line."""

from __future__ import annotations

from traceback import walk_tb

from training.checks import ConfigError, reason

_CONTAINERS = {"Compose", "RandomApply", "RandomChoice", "RandomOrder", "Identity"}


def unfit(error: Exception) -> ConfigError | None:
    """Return what a user should change where a transform refused the first sample; None for a bug.

    Args:
        error: that a stage of a sample raised. Of a transform of the user's own, or of anything
            below torchvision's that is not torch's, it is the traceback that helps.
    """
    name = None
    for frame, _ in walk_tb(error.__traceback__):
        module = str(frame.f_globals.get("__name__"))
        kind = type(frame.f_locals.get("self"))
        if kind.__module__.startswith("torchvision.transforms."):
            name = name if kind.__name__ in _CONTAINERS else kind.__name__
        elif not module.startswith(("torch.", "torchvision.")):
            name = None
    if name is None:
        return None
    of_size = isinstance(error, (ValueError, RuntimeError))
    other = "take a larger data.image_size" if of_size else "give it other arguments"
    return ConfigError(
        f"augment and data.prepare must fit images of data.image_size, but {name} cannot be "
        f"applied to the first one: {reason(error)}; leave {name} out, or {other}"
    )
