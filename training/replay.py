"""Repeating a recorded run: what differs around it, and whether the numbers are the same."""

from __future__ import annotations

import math
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
import yaml

from training import environment
from training.checks import ConfigError
from training.recorded import REPEATABLE, changes, check_changes, read_config
from training.rows import is_time
from training.tables import read_json, read_metrics

_COUNTS = ("built", "reused")
"""What was built and what was found depends on where a run was interrupted, and on its folder."""

_IN_ONE_GO = {"optimizer.lr", "trainer.evaluate_every"}
"""What the last value of does not repeat a run that was begun with another one."""

_COMMAND_ONLY = ("command", "torch.num_threads", "git.untracked")


def check_repeatable(folder: Path, given: dict[str, Any]) -> None:
    """Refuse what would make another run of it, and say what is different around it.

    Args:
        folder: of the recorded run.
        given: the config of the coming one.

    Raises:
        ConfigError: a value differs that matters, the run's own rate was changed on its way, or
            there is nothing to compare with.
    """
    found = changes(read_config(folder, "replay"), given)
    check_changes(found, REPEATABLE, "replay", folder)
    if not read_metrics(folder):
        raise ConfigError(
            f"replay must be a run that has trained an epoch, but got replay={folder}: "
            "its metrics.csv holds none to compare with"
        )
    for again in _resumes(folder):
        for name in _IN_ONE_GO & again["changes"].keys():
            old, new = again["changes"][name]
            raise ConfigError(
                f"replay must be a run of one {name}, but got replay={folder}: "
                f"it went on with {name}={new} after {old} in epoch {again['epoch']}"
            )
    for name, (old, new) in found.items():
        print(f"different: {name} was {old} and is {new}")
    recorded = read_json(folder / "environment.json")
    if not recorded:
        print("different: the recorded environment is not known")
        return
    for line in environment_differences(recorded, environment.describe()):
        print(f"different: {line}")


def _resumes(folder: Path) -> list[Any]:
    file = folder / "resumes.yaml"
    try:
        found = yaml.safe_load(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"replay must be a run whose {file} can be read: {reason}") from error
    return found if isinstance(found, list) else []


def environment_differences(old: Any, new: Any, name: str = "") -> Iterator[str]:
    """Yield a line for each version, commit and part of the hardware that differs."""
    if name in _COMMAND_ONLY:
        return
    if name == "ranks" and old != new:
        yield f"ranks: it was {_ranks(old)} and is {_ranks(new)}"
    elif isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            inner = f"{name}.{key}" if name else key
            yield from environment_differences(old.get(key), new.get(key), inner)
    elif old != new:
        yield f"{name} was {_text(old)} and is {_text(new)}"


def _text(value: Any) -> str:
    return "none" if value is None else str(value)


def _ranks(value: Any) -> str:
    """Say in words what `ranks` of an environment are; one process alone has none."""
    if not isinstance(value, dict):
        return "1 process"
    nodes = value.get("num_nodes")
    return f"{value.get('world_size')} ranks on {nodes} machine{'' if nodes == 1 else 's'}"


def compare(recorded: Path, repeated: Path) -> bool:
    """Print `identical`, or where two runs differ first; say whether they are identical."""
    before, after = read_metrics(recorded), read_metrics(repeated)
    status = read_json(recorded / "status.json").get("status", "of no known status")
    if status != "done":
        print(f"the recorded run is {status}: its {len(before)} epochs are compared")
        after = after[: len(before)]
    _leave_out_former_ends(before, after, recorded)
    difference = first_difference(before, after)
    if difference is None and status == "done":
        marks = [_hash_weights(run) for run in (recorded, repeated)]
        if marks[0] != marks[1]:
            difference = f"final weights: recorded {marks[0]}, now {marks[1]}"
    if counts := first_difference(before, after, counts=True):
        print(f"different: {counts}")
    print("identical" if difference is None else f"not identical: {difference}")
    return difference is None


def _leave_out_former_ends(
    before: list[dict[str, str]], after: list[dict[str, str]], recorded: Path
) -> None:
    """Forget evaluations that a run made only because it was to end there, before it was longer."""
    changes = [again["changes"].get("epochs") for again in _resumes(recorded)]
    ends = {change[0] - 1 for change in changes if change}
    for old, new in zip(before, after, strict=False):
        if int(old["epoch"]) in ends:
            for name in old:
                if name.startswith("val_") and not new.get(name):
                    old[name] = ""


def first_difference(
    before: list[dict[str, str]], after: list[dict[str, str]], counts: bool = False
) -> str | None:
    """Return the first epoch and column in which two tables differ.

    Args:
        before, after: rows of `metrics.csv`.
        counts: compare what was built and reused, instead of what was measured; times never are.
    """
    for old, new in zip(before, after, strict=False):
        for name in [*old, *(name for name in new if name not in old)]:
            values = old.get(name), new.get(name)
            if not (is_time(name) or (name in _COUNTS) != counts or _same(*values)):
                return f"epoch {old['epoch']}, {name}: recorded {values[0]}, now {values[1]}"
    if len(before) != len(after) and not counts:
        return f"of epochs, {len(before)} are recorded and there are {len(after)} now"
    return None


def _same(old: str | None, new: str | None) -> bool:
    try:
        a, b = float(old or ""), float(new or "")
    except ValueError:
        return old == new
    return a == b or (math.isnan(a) and math.isnan(b))


def _hash_weights(run: Path) -> str | None:
    """Return a mark of every bit of a run's last weights and of their moving average."""
    path = run / "checkpoints" / "last.pt"
    if not path.exists():
        return None
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever another program's file makes torch.load raise
        return f"unreadable ({type(error).__name__})"
    digest = sha256()
    for part in ("model", "ema"):
        for name, tensor in sorted((checkpoint[part] or {}).items()):
            digest.update(f"{part} {name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]
