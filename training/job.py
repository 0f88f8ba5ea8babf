"""A job of a sweep: where it works, whether it was done before, and what is said if it fails."""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException

from training.command import USER_ERRORS, read, typed
from training.explain import explain
from training.launch import refuse_lifetimes
from training.lifetime_sweep.driver import is_asked_for, sweep_lifetimes
from training.redaction import Redaction, referred
from training.resolved import config_digest
from training.signals import Interrupted
from training.sweeps import (
    Failure,
    JobError,
    best_value,
    find_done,
    forget_failure,
    note_failure,
    place,
    sweep_of,
)

Main = Callable[[DictConfig], float]


def job(main: Main) -> Main:
    """Let a main function run the jobs of sweeps as well as runs of their own.

    A job that fails is named and does not disturb the others, one that is done is not done again,
    and one that was interrupted goes on.
    """

    @functools.wraps(main)
    def run_one(composed: DictConfig) -> float:
        if HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN:
            return _run_job(main, composed)
        return sweep_lifetimes(composed) if is_asked_for(composed) else main(composed)

    return run_one


def _run_job(main: Main, composed: DictConfig) -> float:
    hydra = HydraConfig.get()
    own = directory = Path(hydra.runtime.output_dir)
    overrides = typed(hydra)
    name = f"job {hydra.job.num} ({' '.join(overrides)})"
    forget_failure(sweep_of(own), str(hydra.job.num))
    try:
        refuse_lifetimes(composed)
        config, record = read(composed, hydra)
        digest = config_digest(record.config)
        if (done := find_done(own, digest)) is not None:
            print(f"{name} is done already, in {done}")
            return best_value(done, config.trainer.monitor)
        directory, goes_on = place(own, digest, overrides)
        _tell(directory, composed, goes_on)
        _restore_start_method()
        return main(composed)
    except Interrupted as error:
        _pass_on(error)
        raise
    except (Exception, SystemExit) as error:
        if isinstance(error, SystemExit) and "SUBMITIT_EXECUTOR" in os.environ:
            raise  # the job will be started again
        said = explain(error) if isinstance(error, Exception) else f"exit code {error.code}"
        said = _redaction(composed)(said)
        print(f"{name} failed: {said}", file=sys.stderr)
        if not isinstance(error, USER_ERRORS):
            traceback.print_exception(error)
        note_failure(
            sweep_of(own), Failure(job=str(hydra.job.num), overrides=overrides, error=said)
        )
        # The frames hold the model, its memory on the device and the loaders; and another
        # exception might not survive the way to the process that started the sweep.
        traceback.clear_frames(error.__traceback__)
        raise JobError(f"{name} failed: {said}") from None
    finally:
        for folder in {own, directory}:
            with suppress(OSError):  # one that stayed empty
                folder.rmdir()


def _redaction(composed: DictConfig) -> Redaction:
    try:
        return Redaction(referred(composed))
    except OmegaConfBaseException:  # it is the config that is wrong, and what is resolved of it
        return Redaction({})


def _tell(directory: Path, composed: DictConfig, goes_on: bool) -> None:
    """Put into the config where the job works, and whether a run goes on there."""
    runtime = HydraConfig.get().runtime
    with read_write(runtime), open_dict(runtime):
        runtime.output_dir = str(directory)
    directory.mkdir(parents=True, exist_ok=True)
    if goes_on:
        composed.resume = str(directory)


def _restore_start_method() -> None:
    """Let DataLoaders start their processes as everywhere: joblib's own way starts only its own."""
    methods = multiprocessing.get_all_start_methods()
    if multiprocessing.get_start_method() not in methods:
        multiprocessing.set_start_method(methods[0], force=True)


def _pass_on(error: Interrupted) -> None:
    """Let whoever had the signal before the run act on it: submitit starts the job again."""
    handler: Any = signal.getsignal(error.signum)
    if callable(handler) and handler is not signal.default_int_handler:
        handler(error.signum, None)
