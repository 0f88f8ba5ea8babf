"""Warnings and errors of several ranks: each is shown once, by the rank that had it first."""

from __future__ import annotations

import logging
import sys
import time
from contextlib import suppress
from hashlib import sha256

import torch.distributed as dist
from tqdm import tqdm

from training.checks import text_of
from training.distributed import RankFailedError, is_set, ranks, store
from training.signals import is_left_alone

_MANNERS_S = 1.0  # torchrun ends all ranks once one has ended: let that be the one that failed
_PATIENCE_S = 2.0  # for rank 0 to fail of the same: a mistake of the user's is shown without a rank
_DIST_ERROR: type[Exception] = getattr(dist, "DistError", dist.DistBackendError)  # torch 2.1
_LOST = "another rank ended without a word, killed perhaps; torchrun names it and its exit code"


def line_of(level: int, text: str) -> str | None:
    """Return a message as this rank shows it: news come from rank 0, a warning from the first.

    Args:
        level: of `logging`.
        text: the message.

    Returns:
        The line; None where it is not for this rank to show it.
    """
    prefix = "" if level < logging.WARNING else f"{logging.getLevelName(level).lower()}: "
    if ranks().is_main and level < logging.WARNING:
        return f"{prefix}{text}"
    if level < logging.WARNING or not _is_first(f"said/{_digest(text)}"):
        return None
    return f"{_who()}{prefix}{text}"


class Console(logging.Handler):
    """Prints above the progress bar instead of through it."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a message, if it is for this rank to show it."""
        line = line_of(record.levelno, record.getMessage())
        if line is not None:
            tqdm.write(line)


def report(error: BaseException, text: str | None) -> None:
    """Print what ends the run, unless another rank has reported it.

    Args:
        error: of this rank; it may say no more than that another rank is gone.
        text: how it is printed, without its last line break; None where that was done before.
    """
    if store() is None:
        if text is not None:
            print(text, file=sys.stderr)
        return
    if not ranks().is_main and not _is_consequence(error):
        _wait_for_rank_0()
    first, known = _first_failure(error)
    if first == ranks().rank and _is_consequence(error):
        text = f"error: {_LOST}"
    if text is None:
        return
    if first == ranks().rank or not (_is_consequence(error) or known == _text_of(error)):
        print(f"{_who()}{text}", file=sys.stderr, flush=True)
    else:
        time.sleep(_MANNERS_S)


def note_exit(code: int) -> None:
    """Let the other ranks know that this one has ended, and has said why where it is to be said."""
    shared = store()
    if shared is not None and not is_left_alone():
        with suppress(RuntimeError, ValueError):  # the store went down with torchrun
            shared.compare_set("failed", "", f"{ranks().rank} exit code {code}")


def cause_of(error: BaseException) -> str:
    """Return what ended the run, for the record: the error of another rank where that was it."""
    if store() is None or not _is_consequence(error):
        return _text_of(error)
    first, text = _first_failure(error)
    return _LOST if first == ranks().rank else f"rank {first}: {text}"


def _who() -> str:
    return "" if ranks().is_main else f"rank {ranks().rank}: "


def _is_first(key: str) -> bool:
    shared, own = store(), str(ranks().rank)
    if shared is None:
        return True
    if is_left_alone():  # without torchrun's store, of which torch would print a page
        return ranks().is_main
    try:
        return shared.compare_set(key, "", own) == own.encode()
    except (RuntimeError, ValueError):  # the store went down with torchrun
        return True


def _first_failure(error: BaseException) -> tuple[int, str]:
    """Return rank and error of the first rank that failed; this one where no other did before."""
    shared, own = store(), _text_of(error)
    assert shared is not None
    try:
        value = shared.compare_set("failed", "", f"{ranks().rank} {own}").decode()
    except (RuntimeError, ValueError):
        return ranks().rank, own
    first, _, text = value.partition(" ")
    return int(first), text


def _wait_for_rank_0() -> None:
    shared, give_up = store(), time.monotonic() + _PATIENCE_S
    assert shared is not None
    try:
        while time.monotonic() < give_up and not is_set(shared, "failed"):
            time.sleep(0.02)
    except (RuntimeError, ValueError):
        return


def _is_consequence(error: BaseException) -> bool:
    # gloo raises a RuntimeError like this: [.../gloo/transport/tcp/pair.cc:534] Connection closed
    is_gloo = isinstance(error, RuntimeError) and "gloo" in str(error)
    return is_gloo or isinstance(error, (RankFailedError, _DIST_ERROR))


def _text_of(error: BaseException) -> str:
    return f"{type(error).__name__}: {text_of(error)}"


def _digest(text: str) -> str:
    return sha256(text.encode(errors="replace")).hexdigest()[:16]
