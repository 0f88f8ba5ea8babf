"""Saving a run, and going on with it: from its newest whole checkpoint, to the same last bit."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

from reuseloader import ReuseDataLoader
from training.checkpoint import Found, read_newest
from training.checks import ConfigError
from training.distributed import ranks, share, wait_for_all
from training.elastic import is_restart
from training.environment import versions
from training.loaders import Loaders
from training.optim import Plan
from training.parallel import seed_rank
from training.records import Run
from training.state import State

log = logging.getLogger("training")

Rows = list[dict[str, Any]]


def write_checkpoints(run: Run, state: State, loader: ReuseDataLoader, ended: bool) -> None:
    """Write the last checkpoint, and the best one where it is that of an epoch that has ended.

    Args:
        run: into whose folder.
        state: of which all batches that were taken are trained on.
        loader: of training; it counts a batch as soon as it is taken.
        ended: whether the epoch has ended.
    """
    place = (state.epoch + 1, 0) if ended else (state.epoch, state.progress.num_batches)
    checkpoint = state.checkpoint()
    checkpoint["loader"] = {
        **loader.state_dict(),
        **dict(zip(("epoch", "num_batches"), place, strict=True)),
    }
    if ended and state.best.epoch == state.epoch:
        run.save_checkpoint("best", checkpoint)
    run.save_checkpoint("last", checkpoint)
    wait_for_all()  # no rank ends before the file is whole
    state.saved = state.step


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
    if share(is_restart() and not any(run.checkpoints.glob("*.pt"))):
        log.info("beginning anew: no checkpoint was written before the restart")
        return run.go_on(state.epoch, state.step)
    found = share(read_newest(run.checkpoints, run.directory) if ranks().is_main else None)
    for line in found.damaged:
        log.warning("%s and is passed over", line)
    content = found.content
    try:
        place = _for_ranks(content["loader"], plan)
        moved = place["world_size"] != content["loader"]["world_size"]
        num_updates = plan.num_updates(place["epoch"], place["num_batches"]) if moved else None
        seed_rank(run.config.seed, content["step"])  # of a rank that was not there
        state.restore(content, num_updates)
        state.progress = replace(state.progress, num_batches=place["num_batches"])
        loaders.train.load_state_dict(place)
    except Exception as error:  # whatever the state of another model raises
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"resume must be a run of this model and data, but {found.path} does not fit: {reason}"
        ) from error
    epoch, batch = place["epoch"], place["num_batches"]
    if epoch != state.epoch:  # it was saved at the end of one
        state.begin_epoch(epoch)
    if reason := _nothing_left(run, state, plan):
        log.info("%s: %s; nothing is trained", run.directory, reason)
        if found.path.name != "last.pt":  # a kill came between the best one and the last
            run.save_checkpoint("last", content)
        run.finish()
        return None
    rows = run.go_on(epoch, state.step)
    log.info("going on from %s: epoch %d, batch %d, step %d", found.path, epoch, batch, state.step)
    if content["base_lr"] != state.base_lr:
        rate = state.optimizer.param_groups[0]["lr"]
        text = "optimizer.lr=%s is what the schedule multiplies: the rate goes on at %.6g"
        log.log(logging.INFO if rate else logging.WARNING, text, state.base_lr, rate)
    if moved:
        _say_ranks(content["loader"]["world_size"], run)
    _say_versions(found)
    return rows


def _nothing_left(run: Run, state: State, plan: Plan) -> str:
    patience = run.config.trainer.early_stopping
    if run.config.trainer.fast_dev_run and state.epoch >= plan.epochs:
        return "it was a trial of one epoch, trainer.fast_dev_run=true"
    if state.epoch >= plan.epochs:
        return f"all of its {plan.epochs} epochs are trained, epochs={state.epoch + 1} adds one"
    at_start = state.progress.num_batches == 0
    if at_start and state.best.is_stale(patience):
        return f"it ended early, after {patience} evaluations without a new best"
    return ""


def _for_ranks(place: dict[str, int], plan: Plan) -> dict[str, int]:
    """Return a place of the training loader for the ranks that there are now.

    Inside an epoch it is the one with as many samples behind it; samples that other ranks had got
    may come twice in this epoch then, and others not at all.
    """
    before, now = place["world_size"], ranks().world_size
    num_batches = min(place["num_batches"] * before // now, plan.batches_in(place["epoch"]))
    return place if before == now else {**place, "world_size": now, "num_batches": num_batches}


def _say_ranks(before: int, run: Run) -> None:
    now, own = ranks().world_size, run.config.batch_size * run.config.trainer.accumulate
    log.info(
        "%d rank%s now, %d before: an update is made of %d samples instead of %d, and what is not "
        "in the folder of its new rank is built again",
        *(now, "" if now == 1 else "s", before, now * own, before * own),
    )


def _say_versions(found: Found) -> None:
    now = versions()
    for name, before in found.content["versions"].items():
        if now.get(name) != before:
            text = "%s was %s and is %s now: the last bits may differ"
            log.warning(text, name, before, now.get(name))
