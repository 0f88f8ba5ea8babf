"""What training changes, and how it is saved."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel

from training.checkpoint import check_loadable, plain
from training.checks import ConfigError
from training.config import Config
from training.distributed import gather, ranks
from training.environment import versions
from training.models import check_model, cross_entropy, not_compiled
from training.optim import Plan, make_optimizer, moving_average
from training.options import MONITORS
from training.parallel import distribute
from training.progress import Progress, TrainLoss, over_ranks
from training.randomness import random_states, restore_random_states
from training.schedule import Schedule
from training.targets import make

log = logging.getLogger("training")

Loss = Callable[[Tensor, Tensor], Tensor]  # (output, labels) -> the mean over the batch


@dataclass
class Best:
    """The best value so far, of which NaN is never one.

    Attributes:
        mode: `max` or `min`.
        value: the best, at first the worst possible.
        epoch: where it was, at first -1.
        num_since: evaluations since then.
        confusion: of the best, int64 true class x predicted class.
    """

    mode: str
    value: float
    epoch: int = -1
    num_since: int = 0
    confusion: Tensor | None = None

    @classmethod
    def of(cls, monitor: str) -> Best:
        """Begin with the worst value that a metric can have."""
        mode = MONITORS[monitor]
        return cls(mode, -math.inf if mode == "max" else math.inf)

    def update(self, value: float, epoch: int) -> bool:
        """Take note of an evaluation; say whether it is the best."""
        better = value > self.value if self.mode == "max" else value < self.value  # False for NaN
        if better:
            self.value, self.epoch, self.num_since = value, epoch, 0
        else:
            self.num_since += 1
        return better

    def is_stale(self, patience: int | None) -> bool:
        """Say whether so many evaluations brought no new best; never where None are asked for."""
        return patience is not None and self.num_since >= patience


@dataclass
class State:
    """What training changes, with what changes it.

    Attributes:
        model: the model; at every step each module is in the mode that it was made in.
        optimizer, schedule: as the config names them.
        scaler: scales the loss for fp16; passes everything on otherwise.
        best: the best evaluation so far.
        ema: a moving average of the model, or None.
        distributed: the model with an exchange of gradients, where there are several ranks.
        loss: what is minimised.
        epoch: the current epoch, from 0 up.
        step: updates made so far; one that fp16 skipped is none.
        lr: the rate of the latest update.
        base_lr: the rate that the schedule multiplies, of an optimizer that has one.
        losses, progress: of the current epoch.
        saved: the step of the latest checkpoint.
        point: step and values of the latest point of the training curves.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    schedule: Schedule
    scaler: torch.amp.GradScaler
    best: Best
    ema: AveragedModel | None = None
    distributed: nn.Module | None = None
    loss: Loss = F.cross_entropy
    epoch: int = 0
    step: int = 0
    lr: float = 0.0
    base_lr: float | None = None
    losses: TrainLoss = field(default_factory=TrainLoss)
    progress: Progress = field(default_factory=Progress)
    saved: int = 0
    point: tuple[int, dict[str, float]] = (-1, {})

    @property
    def parallel(self) -> nn.Module:
        """What the forward pass of training goes through."""
        return self.model if self.distributed is None else self.distributed

    @property
    def evaluated(self) -> nn.Module:
        """The model that is evaluated: the moving average where there is one."""
        return self.model if self.ema is None else self.ema.module

    def begin_epoch(self, epoch: int) -> None:
        """Begin an epoch."""
        self.epoch, self.losses, self.progress = epoch, TrainLoss(), Progress()

    def check_weights(self) -> None:
        """Make sure that the weights can be saved: the loss shows a bad update only at the next.

        A weight that does not learn is what the user made it, -inf perhaps.

        Raises:
            FloatingPointError: a weight is not finite.
        """
        learning = (weight for weight in self.model.parameters() if weight.requires_grad)
        finite = torch.stack([weight.isfinite().all() for weight in learning])
        if not bool(finite.all()):
            raise FloatingPointError(
                f"a weight is not finite at the end of epoch {self.epoch}, step {self.step}"
            )

    def checkpoint(self) -> dict[str, Any]:
        """Return all that it takes to continue, loadable with `weights_only=True`.

        Raises:
            FloatingPointError: a loss or a weight is not finite: there is nothing to continue.
            ConfigError: a part of the user's keeps in its state what cannot be loaded so.
        """
        self.losses.read(self.epoch)
        self.check_weights()
        losses, progress = over_ranks(self.losses, self.progress)
        random, *others = gather(random_states())
        made = {
            "model": self.model.state_dict(),
            "ema": None if self.ema is None else self.ema.state_dict(),
            "optimizer": plain(self.optimizer.state_dict()),
            "scheduler": plain(self.schedule.state_dict()),
        }
        check_loadable(made, "state")
        return made | {
            "scaler": self.scaler.state_dict(),
            "random": random,
            "others": others,
            "epoch": self.epoch,
            "step": self.step,
            "lr": plain(self.lr),
            "base_lr": plain(self.base_lr),
            "losses": losses.state_dict(),
            "progress": dict(vars(progress)),
            "best": dict(vars(self.best)),
            "point": plain(list(self.point)),
            "versions": versions(),
        }

    def restore(self, checkpoint: dict[str, Any], num_updates: int | None = None) -> None:
        """Continue from what `checkpoint` returned; a new rate of the config's holds from now on.

        Of several ranks, rank 0 takes over what the epoch has come to; a rank that was not there
        before keeps the state of its random generators.

        Args:
            checkpoint: of this model and optimizer.
            num_updates: where a schedule of updates stands, if the run has got another length;
                None leaves it where it was.

        Raises:
            RuntimeError, ValueError, KeyError: it is another model's, or another optimizer's.
        """
        self.model.load_state_dict(checkpoint["model"])
        if self.ema is not None:
            self.ema.load_state_dict(checkpoint["ema"])
        self.optimizer.load_state_dict(checkpoint["optimizer"])
        self.scaler.load_state_dict(checkpoint["scaler"])
        if num_updates is not None and self.schedule.each == "update":
            self.schedule.advance(num_updates)
        else:
            self.schedule.load_state_dict(checkpoint["scheduler"])
        self._scale(checkpoint["base_lr"])
        self.epoch, self.step, self.lr = (checkpoint[name] for name in ("epoch", "step", "lr"))
        self.losses, self.progress = TrainLoss(), Progress()
        if ranks().is_main:
            self.losses = TrainLoss(**checkpoint["losses"])
            self.progress = Progress(**checkpoint["progress"])
        common = {name: checkpoint["progress"][name] for name in ("num_batches", "seconds")}
        self.progress = replace(self.progress, **common)
        self.saved = self.step
        self.best = Best(**checkpoint["best"])
        step, values = checkpoint["point"]
        self.point = (step, values)
        random = [checkpoint["random"], *checkpoint.get("others", [])]
        if ranks().rank < len(random):
            restore_random_states(random[ranks().rank])

    def _scale(self, before: float | None) -> None:
        if before is None or self.base_lr is None or before == self.base_lr:
            return
        if before == 0:
            raise ValueError("optimizer.lr must stay 0: no factor makes another rate of it")
        self.schedule.scale(self.base_lr / before)


def make_model(config: Config, device: torch.device) -> nn.Module:
    """Make the model on the device; each module trains or not as it was made.

    Raises:
        ConfigError: the node cannot be made, or makes something else.
    """
    model: nn.Module = make(config.model, "model")
    check_model(model, config.model["_target_"])
    if not any(module.training for module in model.modules()):
        log.info("the model was made in evaluation mode: all of it is put into training mode")
        model.train()
    memory = torch.channels_last if config.trainer.channels_last else torch.preserve_format
    return model.to(device, memory_format=memory)  # type: ignore[call-overload,no-any-return]


def make_state(config: Config, model: nn.Module, device: torch.device, plan: Plan) -> State:
    """Make everything around the model.

    Raises:
        ConfigError: a node of the config cannot be made.
    """
    trainer = config.trainer
    ema = None
    if trainer.ema_decay is not None:
        ema = moving_average(model, trainer.ema_decay)
    optimizer = make_optimizer(config.optimizer, model)
    schedule = Schedule(config.schedule, optimizer, plan, trainer.monitor)
    for note in [] if trainer.fast_dev_run else schedule.notes:
        log.warning("%s", note)
    if trainer.compile:
        try:
            model.compile()  # in place, after the copy above: the names of the parameters stay
        except RuntimeError as error:  # a Python that this torch cannot compile
            raise not_compiled(error) from error
    return State(
        model=model,
        optimizer=optimizer,
        schedule=schedule,
        scaler=make_scaler(device, enabled=trainer.precision == "fp16"),
        best=Best.of(trainer.monitor),
        base_lr=optimizer.defaults.get("lr"),
        ema=ema,
        distributed=distribute(model, device),  # after the copy above: it adds hooks
        loss=partial(
            cross_entropy,
            num_classes=config.data.num_classes,
            label_smoothing=trainer.label_smoothing,
        ),
    )


def make_scaler(device: torch.device, enabled: bool) -> torch.amp.GradScaler:
    """Return what scales the loss for fp16, or passes everything on where it is not enabled.

    Raises:
        ConfigError: this torch knows fp16 on CUDA alone.
    """
    if hasattr(torch.amp, "GradScaler"):
        return torch.amp.GradScaler(device.type, enabled=enabled)
    if enabled and device.type != "cuda":
        raise ConfigError(
            f"trainer.precision must be fp32 or bf16 on {device.type} with torch "
            f"{torch.__version__}, but got trainer.precision=fp16; torch 2.3 can do it"
        )
    return torch.cuda.amp.GradScaler(enabled=enabled)


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Put the model into evaluation mode; give each of its modules its own mode back after it."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:  # parents come first, and children after what those do to them
            if module.training != mode:
                module.train(mode)  # which a module may have made its own, to undo what eval() did
                module.training = mode
