"""The command line around a run: folders, errors in one line, and CTRL-C."""

from __future__ import annotations

import io
import os
import shlex
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from reuseloader import FolderInUseError, ImpureBuildError
from reuseloader.store import UnstorableSampleError
from training.arguments import join, parse
from training.complaints import report
from training.config import ConfigError, load_config
from training.curriculum import expand
from training.distributed import ranks
from training.elastic import after_restart, forget
from training.explain import explain, mistake_in_files
from training.recorded import default_run_dir, quoted, read_config, resumed, rewrite_command
from training.records import Record, Run
from training.redaction import Redaction, referred
from training.replay import check_repeatable, compare
from training.report.writing import reported
from training.resolved import resolved
from training.sections import Table
from training.signals import Interrupted, end_children
from training.torchrun import command_name, each_rank, follow, lead, refuse_sweep

# ${run_id:} makes run folders differ that are named after the same second.
OmegaConf.register_new_resolver("run_id", lambda: os.urandom(3).hex(), use_cache=True, replace=True)

USER_ERRORS = (
    *(ConfigError, FolderInUseError, ImpureBuildError, UnstorableSampleError),
    *(HydraException, OmegaConfBaseException),
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
        config = load_config(composed)
        table = expand(composed, config.curriculum.table)
        variables = referred(composed)
        record = Record(
            config=_recorded(composed, Redaction(variables).values(table), hydra),
            overrides=_typed(hydra),
            curriculum=table,
            variables=variables,
        )
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
        if hydra.mode == RunMode.MULTIRUN:  # the next job begins now; this one's error would wait
            overrides = " ".join(_typed(hydra))
            print(f"job {hydra.job.num} ({overrides}) failed: {explain(error)}", file=sys.stderr)
        elif isinstance(error, USER_ERRORS):
            fail(error)
        raise


def _recorded(composed: DictConfig, table: Table, hydra: Any) -> dict[str, Any]:
    config = resolved(composed)
    if config["curriculum"]["table"] is not None:
        config["curriculum"]["table"] = table
    # With these the file is a config of its own: --config-path RUN --config-name config.
    raw: Any = OmegaConf.to_container(hydra, resolve=False)
    config["hydra"] = {name: raw[name] for name in ("run", "sweep", "output_subdir")}
    return config


def _typed(hydra: Any) -> list[str]:
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
    try:
        if ranks().is_main:
            given = parse(_for_hydra(after_restart(sys.argv[1:])))
            refuse_sweep(given)
            sys.argv[1:] = join(given)
        main()
    except KeyboardInterrupt as error:
        end_children()
        traceback.clear_frames(error.__traceback__)  # lets go of the loaders
        if not isinstance(error, Interrupted):
            print("\nstopped by CTRL-C", file=sys.stderr)
            sys.exit(130)
        if ranks().is_main:
            print(f"stopped by {error}{_how_to_go_on(error.run)}", file=sys.stderr)
        sys.exit(128 + error.signum)
    except USER_ERRORS as error:
        fail(error)
    except OSError as error:
        if any(frame.name == "begin" for frame in traceback.extract_tb(error.__traceback__)):
            raise
        # Hydra makes the folder before it calls anything of ours.
        fail(ConfigError(f"hydra.run.dir must be a folder that can be made: {error}"))
    except Exception as error:
        if line := mistake_in_files(error):
            fail(ConfigError(line))
        raise


def _for_hydra(arguments: list[str]) -> list[str]:
    """Turn a command that names a recorded run into one that Hydra composes."""
    for argument in arguments:
        name, equals, value = argument.lstrip("+").partition("=")
        if equals and name in ("resume", "replay") and value not in ("", "null"):
            folder = Path(value.strip("'\"")).absolute()
            rest = [other for other in arguments if other is not argument]
            read_config(folder, name)
            run_dir = quoted(folder) if name == "resume" else default_run_dir()
            return rewrite_command(name, folder, rest, run_dir)
    return arguments


def _how_to_go_on(run: Path | None) -> str:
    if run is None:
        return ""
    path = run.relative_to(Path.cwd()) if run.is_relative_to(Path.cwd()) else run
    return f"; to go on: {command_name()} train.py {shlex.quote(f'resume={path}')}"


def fail(error: Exception) -> NoReturn:
    """End the process with a user's mistake in one line."""
    report(error, f"error: {explain(error)}")
    sys.exit(1)
