"""The command on several ranks: rank 0 reads it and begins the run, the others follow."""

from __future__ import annotations

import os
import sys
import traceback
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import setup_globals
from omegaconf import DictConfig, OmegaConf

from training.arguments import is_sweep
from training.complaints import note_exit, report
from training.config import ConfigError, load_config
from training.curriculum import expand
from training.distributed import (
    is_launched,
    is_set,
    join_group,
    leave_group,
    put,
    ranks,
    store,
    take,
)
from training.elastic import forget, remember
from training.records import Record, Run
from training.signals import end_with_parent

_RUN = "run"  # in the store: what the other ranks begin with, None where there is nothing to run


@contextmanager
def each_rank(main: Callable[..., Any]) -> Iterator[Callable[[], Any]]:
    """Meet the other ranks where there are some, and report what ends this one.

    Yields:
        What this rank is to call: Hydra's main function, which on other ranks than 0 leaves out
        Hydra, and with it a second folder.
    """
    if not is_launched():
        yield main
        return
    if "TORCHELASTIC_RUN_ID" in os.environ:  # the parent is torchrun
        end_with_parent()
    join_group()
    code: Any = 1
    try:
        try:
            yield main if ranks().is_main else partial(main, OmegaConf.create())
            code = 0
        except SystemExit as error:
            code = error.code or 0
        if code == 0:
            _end_followers()
            leave_group()  # another rank may be gone, rank 0 with what it compared at the end
        else:
            note_exit(code)
    except Exception as error:
        code = 1
        lines = "".join(traceback.format_exception(error))
        report(error, f"the run ends with this error:\n{lines}")
    sys.exit(code)


def refuse_sweep(given: Namespace) -> None:
    """Make sure that several ranks have one run to do.

    Raises:
        ConfigError: it is a sweep.
    """
    if not ranks().is_single and is_sweep(given):
        raise ConfigError(
            "--multirun must not be used under torchrun: start a torchrun for each value, or "
            "python train.py --multirun with a process for each job"
        )


def command_name() -> str:
    """Return what to type before `train.py`."""
    if ranks().is_single:
        return "python"
    number = f"--nproc-per-node={ranks().local_world_size}"
    return f"torchrun {number}" if ranks().num_nodes == 1 else f"torchrun ... {number}"


def lead(run: Run, composed: DictConfig) -> None:
    """Let the other ranks begin the run that this one has begun; note it for a restart.

    Args:
        run: of rank 0.
        composed: the config as Hydra composed it. What refers to the environment, like a folder
            on a local disk, is resolved by each rank for itself.
    """
    if run.config.replay is None and run.config.trainer.evaluate is None:
        remember(run.directory)
    if not ranks().is_single:
        hydra = HydraConfig.instance().cfg
        put(_RUN, (run.directory, composed, hydra, run.config.schedule_end))


@contextmanager
def follow() -> Iterator[Run]:
    """Begin the run that rank 0 has begun; nothing of it is written here."""
    job = take(_RUN)
    if job is None:
        sys.exit(0)
    directory, composed, hydra, schedule_end = job
    setup_globals()
    HydraConfig.instance().set_config(hydra)
    config = replace(load_config(composed), schedule_end=schedule_end)
    table = expand(composed, config.curriculum.table)
    changes: dict[str, Any] | None = None if config.resume is None else {}
    record = Record(config={}, overrides=[], curriculum=table, changes=changes)
    with Run(directory, config, record) as run:
        if config.replay is None and config.trainer.evaluate is None:
            remember(directory)
        yield run
    forget()


def _end_followers() -> None:
    shared = store()
    if shared is not None and ranks().is_main and not is_set(shared, _RUN):
        put(_RUN, None)
