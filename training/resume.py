"""Going on with a run: from its newest whole checkpoint, to the same last bit."""

from __future__ import annotations

import logging
from typing import Any

from training.checkpoint import Found, read_newest
from training.checks import ConfigError
from training.environment import versions
from training.loaders import Loaders
from training.optim import Plan
from training.records import Run
from training.state import State

log = logging.getLogger("training")

Rows = list[dict[str, Any]]


def restore(run: Run, state: State, loaders: Loaders, plan: Plan) -> Rows | None:
    """Put a run's state back.

    Args:
        run: nothing in its folder changes before all of the checkpoint has found its place.
        state: gets what the checkpoint holds.
        loaders: the training loader goes on with the batch after it.
        plan: how long the run is now.

    Returns:
        The rows of the epochs that ended, or None where there is nothing left to train.

    Raises:
        ConfigError: there is no whole checkpoint, or it is another run's.
    """
    found = read_newest(run.checkpoints, run.directory)
    for line in found.damaged:
        log.warning("%s and is passed over", line)
    content = found.content
    try:
        state.restore(content)
        loaders.train.load_state_dict(content["loader"])
    except Exception as error:  # whatever the state of another model raises
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"resume must be a run of this model and data, but {found.path} does not fit: {reason}"
        ) from error
    epoch, batch = content["loader"]["epoch"], content["loader"]["num_batches"]
    if epoch != state.epoch:  # it was saved at the end of one
        state.begin_epoch(epoch)
    if reason := _nothing_left(run, state, plan):
        log.info("%s: %s; nothing is trained", run.directory, reason)
        return None
    rows = run.go_on(epoch, state.step)
    log.info("going on from %s: epoch %d, batch %d, step %d", found.path, epoch, batch, state.step)
    if content["base_lr"] != state.base_lr:
        rate = state.optimizer.param_groups[0]["lr"]
        text = "optimizer.lr=%s is what the schedule multiplies: the rate goes on at %.6g"
        log.log(logging.INFO if rate else logging.WARNING, text, state.base_lr, rate)
    _say_versions(found)
    return rows


def _nothing_left(run: Run, state: State, plan: Plan) -> str:
    patience = run.config.trainer.early_stopping
    if state.epoch >= plan.epochs:
        return f"all of its {plan.epochs} epochs are trained, epochs={state.epoch + 1} adds one"
    at_start = state.progress.num_batches == 0
    if patience is not None and at_start and state.best.num_since >= patience:
        return f"it ended early, after {patience} evaluations without a new best"
    return ""


def _say_versions(found: Found) -> None:
    now = versions()
    for name, before in found.content["versions"].items():
        if now.get(name) != before:
            text = "%s was %s and is %s now: the last bits may differ"
            log.warning(text, name, before, now.get(name))
