"""python -m training.bounds [overrides]: what bounds a training, and what would change it."""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import NoReturn

from hydra import compose, initialize_config_dir

from training.bounds.measure import Bench
from training.bounds.picture import draw_bounds
from training.bounds.text import describe_bounds
from training.checks import ConfigError
from training.command import USER_ERRORS, fail
from training.config import Config, load_config
from training.curriculum import expand
from training.sections import Table
from training.targets import PROJECT

USAGE = """python -m training.bounds [overrides]

Measures on this machine, in about a minute, what the input and the computing of a training cost,
and predicts from it how long an epoch takes at other lifetimes and numbers of workers. It takes
the overrides of train.py: python -m training.bounds data.train.limit=500 model=resnet18
"""
PICTURE = Path("outputs", "bounds.png")


def main(arguments: list[str]) -> None:
    """Measure, and print what follows."""
    if {"-h", "--help"} & set(arguments):
        print(USAGE)
        return
    try:
        config, table = read(arguments)
        with tempfile.TemporaryDirectory(prefix=".bounds-", dir=_place(config)) as folder:
            bounds = Bench(config, table, Path(folder).absolute(), say).measure()
    except USER_ERRORS as error:
        fail(error)
    print(describe_bounds(bounds, arguments))
    PICTURE.parent.mkdir(exist_ok=True)
    draw_bounds(bounds, PICTURE)
    print(f"picture                    {PICTURE}")


def read(arguments: list[str]) -> tuple[Config, Table]:
    """Return the config that train.py would have, and its expanded curriculum.

    Raises:
        ConfigError, HydraException: an override is wrong.
    """
    for argument in arguments:
        name = argument.lstrip("+").partition("=")[0]
        if argument.startswith("-") or name in ("resume", "replay"):
            raise ConfigError(f"bounds measures one config, and takes no {name}")
    with initialize_config_dir(str(PROJECT / "conf"), version_base="1.3"):
        composed = compose("config", overrides=arguments)
    config = load_config(composed)
    return config, expand(composed, config.curriculum.table)


def _place(config: Config) -> Path:
    """Return where to put the samples: where the cache would be, because disks differ."""
    given = config.cache.directory
    folders = [Path(given), *Path(given).parents] if given is not None else [Path("outputs")]
    return next((folder for folder in folders if folder.is_dir()), Path())


def say(text: str) -> None:
    """Show what is measured now."""
    print(f"{text} ...", file=sys.stderr)


def _end(signum: int, frame: FrameType | None) -> NoReturn:
    sys.exit(128 + signum)  # by way of the folder's removal


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)
    os.environ["HYDRA_FULL_ERROR"] = "1"
    logging.getLogger("training").setLevel(logging.ERROR)
    main(sys.argv[1:])
