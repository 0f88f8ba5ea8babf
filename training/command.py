"""The command line around a run: folders, errors in one line, and CTRL-C."""

from __future__ import annotations

import io
import os
import re
import shlex
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import torch
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from reuseloader import FolderInUseError, ImpureBuildError
from reuseloader.store import UnstorableSampleError
from training.arguments import is_sweep, join, parse
from training.complaints import report
from training.config import Config, ConfigError, load_config
from training.curriculum import expand
from training.device import spread
from training.disk import UnsavedError
from training.distributed import ranks
from training.elastic import after_restart, forget, was_said
from training.explain import explain, mistake_in_files
from training.launch import launch
from training.recorded import (
    default_place,
    quoted,
    read_config,
    resumed,
    rewrite_command,
    with_places,
)
from training.records import Record, Run
from training.redaction import Redaction, referred
from training.replay import check_repeatable, compare
from training.report.writing import report_sweep, reported
from training.resolved import resolved
from training.sections import Table
from training.signals import Interrupted, end_children, is_left_alone
from training.sweeps import JobError, failures
from training.torchrun import command_name, each_rank, follow, lead, refuse_sweep

USER_ERRORS = (
    *(ConfigError, FolderInUseError, ImpureBuildError, UnstorableSampleError, UnsavedError),
    *(HydraException, OmegaConfBaseException),
    FloatingPointError,  # a loss or a weight that is not finite: of the rate, most often
)


@contextmanager
def begin(composed: DictConfig) -> Iterator[Run]:
    """Check the config and record a run in Hydra's output folder, until the block ends.

    Args:
        composed: the config as Hydra composed it.

    Raises:
        ConfigError: the config is wrong, or the folder holds a run.
    """
    if not ranks().is_main:
        with follow() as run:
            yield run
        return
    hydra = HydraConfig.get()
    directory = Path(hydra.runtime.output_dir)
    try:
        config, record = read(composed, hydra)
        if hydra.mode == RunMode.MULTIRUN and hydra.runtime.choices["hydra/launcher"] != "basic":
            device = spread(config.device, hydra.job.num, torch.cuda.device_count())
            config = replace(config, device=device)
        if config.resume is not None:
            config, record = resumed(Path(config.resume), config, record)
        if config.replay is not None:
            check_repeatable(Path(config.replay), record.config)
            record.config["replay"] = None
        run = Run(directory, config, record)
        with reported(run), run:
            lead(run, composed)
            yield run
        forget()
        if config.replay is not None and not compare(Path(config.replay), directory):
            sys.exit(1)
    except Exception as error:
        with suppress(OSError):  # an empty folder is left where the run did not begin
            directory.rmdir()
        if isinstance(error, USER_ERRORS) and hydra.mode != RunMode.MULTIRUN:
            fail(error)
        raise


def read(composed: DictConfig, hydra: Any) -> tuple[Config, Record]:
    """Return the checked config, and what is written down of it.

    Raises:
        ConfigError: the config is wrong.
    """
    config = load_config(composed)
    table = expand(composed, config.curriculum.table)
    variables = referred(composed)
    record = Record(
        config=_recorded(composed, Redaction(variables).values(table), hydra)
        | {"num_workers": config.num_workers},  # of `auto` the number
        overrides=typed(hydra),
        curriculum=table,
        variables=variables,
    )
    return config, record


def _recorded(composed: DictConfig, table: Table, hydra: Any) -> dict[str, Any]:
    config = resolved(composed)
    if config["curriculum"]["table"] is not None:
        config["curriculum"]["table"] = table
    # With these the file is a config of its own: --config-path RUN --config-name config.
    raw: Any = OmegaConf.to_container(hydra, resolve=False)
    config["hydra"] = {name: raw[name] for name in ("run", "sweep", "output_subdir")}
    if hydra.mode == RunMode.MULTIRUN:
        # Not the sweep that this job is of.
        config["hydra"]["sweep"] = default_place("sweep", _composed_from(hydra))
    return config


def _composed_from(hydra: Any) -> Path | None:
    mains = [source.path for source in hydra.runtime.config_sources if source.provider == "main"]
    return Path(mains[0]) if mains else None


def typed(hydra: Any) -> list[str]:
    """Return the overrides as they were typed."""
    # Unresolved: a reference to the environment may stand for a secret.
    typed: Any = OmegaConf.to_container(hydra.overrides.task, resolve=False)
    return list(typed)


def run_command(main: Callable[[], Any]) -> None:
    """Run Hydra's main function; end the process with one line for a user's mistake.

    Exit codes: 0 when all went well, 1 after an error, 128 + the number of a signal after one.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # as train.py has it for its imports
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then leaves its exceptions to the lines below
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")  # a name must not stop a run
    with each_rank(main) as own_main:
        _run_main(own_main)


def _run_main(main: Callable[[], Any]) -> None:
    line, sweep = sys.argv[1:], None  # the folder of a sweep
    try:
        words = after_restart(line)  # asked by every rank: another machine may know of the run
        if ranks().is_main:
            given = parse(_for_hydra(words))
            refuse_sweep(given)
            if is_sweep(given):
                with launch(given) as (given, sweep):
                    sys.argv[1:] = join(given)
                    _run_sweep(main, line, sweep)
                return
            sys.argv[1:] = join(given)
        main()
    except KeyboardInterrupt as error:
        end_children()
        traceback.clear_frames(error.__traceback__)  # lets go of the loaders
        if not isinstance(error, Interrupted):
            print(f"\nstopped by CTRL-C{_how_to_go_on(None, line, sweep)}", file=sys.stderr)
            sys.exit(130)
        if ranks().is_main:
            text = _how_to_go_on(error.run, line, sweep)
            cause = "the end of torchrun" if is_left_alone() else error
            print(f"stopped by {cause}{text}", file=sys.stderr)
        sys.exit(128 + error.signum)
    except USER_ERRORS as error:
        fail(error)
    except OSError as error:
        names = {frame.name for frame in traceback.extract_tb(error.__traceback__)}
        if sweep is not None or "begin" in names:
            raise
        # Hydra makes the folder before it calls anything of ours.
        fail(ConfigError(f"hydra.run.dir must be a folder that can be made: {error}"))
    except Exception as error:
        if mistake := mistake_in_files(error):
            fail(ConfigError(mistake))
        raise


def _for_hydra(arguments: list[str]) -> list[str]:
    """Turn a command that names a recorded run into one that Hydra composes."""
    for argument in arguments:
        name, equals, value = argument.lstrip("+").partition("=")
        if equals and name in ("resume", "replay") and value not in ("", "null"):
            folder = Path(value.strip("'\"")).expanduser().absolute()
            rest = [other for other in arguments if other is not argument]
            rest = with_places(rest, read_config(folder, name))
            run_dir = quoted(folder) if name == "resume" else str(default_place("run")["dir"])
            return rewrite_command(name, folder, rest, run_dir)
    return arguments


def _run_sweep(main: Callable[[], Any], line: list[str], sweep: Path) -> None:
    """Run the jobs of a sweep, and end with an error where one of them failed."""
    try:
        main()
    except JobError:
        pass  # one of those that are named below
    except Exception as error:
        if not failures(sweep):
            raise
        print(f"the sweep ended early: {explain(error)}", file=sys.stderr)
    finally:
        after_sweep(sweep)
    failed = failures(sweep)
    for one in failed:
        text = f"error: job {one.job} ({' '.join(one.overrides)}) failed: {one.error}"
        print(text, file=sys.stderr)
    if failed:
        print(f"to run what is missing: {again(line, sweep)}", file=sys.stderr)
        sys.exit(1)


def after_sweep(sweep: Path) -> None:
    """Write the report of a sweep that has ended, in whatever way, and say what it comes to."""
    for line in report_sweep(sweep):
        print(line)


def _how_to_go_on(run: Path | None, line: list[str], sweep: Path | None) -> str:
    if sweep is not None:
        return f"; to go on: {again(line, sweep)}"
    if run is not None:
        return f"; to go on: {command_name()} train.py {shlex.quote(f'resume={_short(run)}')}"
    return ""


def again(line: list[str], sweep: Path, key: str = "hydra.sweep.dir") -> str:
    """Return the command that runs what of a sweep is not done."""
    words = [word for word in line if not word.startswith(f"{key}=")]
    folder = str(_short(sweep))
    plain = re.fullmatch(r"[\w./-]+", folder) is not None
    words.append(f"{key}={folder if plain else quoted(folder)}")
    return f"python train.py {shlex.join(words)}"


def _short(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def fail(error: Exception) -> NoReturn:
    """End the process with a user's mistake in one line."""
    text = f"error: {explain(error)}"
    report(error, None if ranks().is_main and was_said(text) else text)
    sys.exit(1)
