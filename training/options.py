"""The options of the loop and of what it writes; `conf/` explains them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from training.checks import check, check_minimum

PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
MONITORS = {"val_accuracy": "max", "val_loss": "min"}
"""What may decide which epoch is best, and whether the largest or the smallest value wins."""

SMALLEST_ALPHA, LARGEST_ALPHA = 0.01, 1e6
"""Of the Beta distribution of MixUp and CutMix. At 0.001 a quarter of torch's draws are exactly a
half instead of about 0 or 1, at 0.01 none of 200,000; at 1e6 all are a half, to 0.1 %."""


@dataclass(frozen=True, kw_only=True)
class TrainerConfig:
    """How the loop trains."""

    precision: str = "fp32"
    compile: bool = False
    channels_last: bool = False
    accumulate: int = 1
    echo: int = 1
    clip_norm: float | None = None
    ema_decay: float | None = None
    label_smoothing: float = 0.0
    mixup_alpha: float = 0.0
    cutmix_alpha: float = 0.0
    batch_transforms: dict[str, Any] = field(default_factory=dict)
    monitor: str = "val_accuracy"
    early_stopping: int | None = None
    evaluate_every: int = 1
    limit_batches: int | None = None
    overfit_batches: int | None = None
    fast_dev_run: bool = False
    evaluate: str | None = None

    def __post_init__(self) -> None:
        for name in ("accumulate", "echo", "evaluate_every"):
            check_minimum(f"trainer.{name}", getattr(self, name), 1)
        for name in ("early_stopping", "limit_batches", "overfit_batches"):
            value = getattr(self, name)
            rule = "null or a positive integer"
            check(f"trainer.{name}", value, value is None or value >= 1, rule)
        for name in ("mixup_alpha", "cutmix_alpha"):
            value = getattr(self, name)
            holds = value == 0 or SMALLEST_ALPHA <= value <= LARGEST_ALPHA
            rule = f"0, or a number from {SMALLEST_ALPHA} to {LARGEST_ALPHA:,.0f}"
            check(f"trainer.{name}", value, holds, rule)
        precision, monitor = self.precision, self.monitor
        known = precision in PRECISIONS
        check("trainer.precision", precision, known, f"one of {', '.join(PRECISIONS)}")
        check("trainer.monitor", monitor, monitor in MONITORS, f"one of {', '.join(MONITORS)}")
        smoothing, norm, decay = self.label_smoothing, self.clip_norm, self.ema_decay
        check("trainer.label_smoothing", smoothing, 0 <= smoothing < 1, "a number in [0, 1)")
        fits = norm is None or 0 < norm < math.inf
        check("trainer.clip_norm", norm, fits, "null or a finite positive number")
        fits = decay is None or 0 <= decay < 1
        check("trainer.ema_decay", decay, fits, "null or a number in [0, 1)")


@dataclass(frozen=True, kw_only=True)
class TrackerConfig:
    """What is written beside metrics.csv."""

    tensorboard: bool = False
    wandb: dict[str, Any] | None = None
    mlflow: dict[str, Any] | None = None
    log_every: int = 10
    num_pictures: int = 8
    profile: bool = False

    def __post_init__(self) -> None:
        check_minimum("tracker.log_every", self.log_every, 1)
        check_minimum("tracker.num_pictures", self.num_pictures, 0)


@dataclass(frozen=True, kw_only=True)
class ReportConfig:
    """What is drawn of a run or a sweep when it has ended."""

    enabled: bool = True
    target: float | None = None

    def __post_init__(self) -> None:
        target = self.target
        fits = target is None or 0 < target <= 1
        check("report.target", target, fits, "null or a fraction above 0 and up to 1")


EQUAL = ("epochs", "wall_time")
"""What the runs of a sweep over lifetimes may have in common."""

LIST_RULES = {
    "sweep.lifetimes": "null or two or more positive whole numbers, each once, like [1,2,4]",
    "sweep.seeds": "whole numbers, each once, like [0,1,2]",
    "sweep.equal": "a list, [epochs] or [epochs,wall_time]",
}
"""What the lists of a config must be, for the messages."""


@dataclass(frozen=True, kw_only=True)
class SweepConfig:
    """Which lifetimes are compared, each in processes of its own; `lifetimes` None is one run."""

    lifetimes: list[int] | None = None
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2])
    equal: list[str] = field(default_factory=lambda: list(EQUAL))
    fresh: bool = True

    def __post_init__(self) -> None:
        if self.lifetimes is not None:
            lifetimes = self.lifetimes
            several = _are_integers(lifetimes) and len(lifetimes) > 1 and min(lifetimes) >= 1
            check("sweep.lifetimes", lifetimes, several, LIST_RULES["sweep.lifetimes"])
        seeds, equal = self.seeds, self.equal
        given = _are_integers(seeds) and len(seeds) > 0
        check("sweep.seeds", seeds, given, LIST_RULES["sweep.seeds"])
        known = equal in (["epochs"], list(EQUAL), list(reversed(EQUAL)))
        check("sweep.equal", equal, known, LIST_RULES["sweep.equal"])


def _are_integers(values: list[Any]) -> bool:
    """Say whether values are integers, each once; OmegaConf lets a list inside a list pass."""
    return all(type(value) is int for value in values) and len(set(values)) == len(values)
