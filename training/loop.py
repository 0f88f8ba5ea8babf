"""The training loop, from top to bottom: batches become steps, epochs become rows."""

from __future__ import annotations

import logging
import math
import os
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm

from training.config import Config, ConfigError
from training.loaders import Loaders
from training.records import Run
from training.targets import make

log = logging.getLogger("training")


@dataclass
class Wait:
    """Passes on what a loader gives, and adds up the time that it was waited for."""

    seconds: float = 0.0

    def of(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield the batches; whoever takes them is timed until the next one is there."""
        iterator = iter(batches)
        while True:
            start = perf_counter()
            batch = next(iterator, None)
            self.seconds += perf_counter() - start
            if batch is None:
                return
            yield batch


@dataclass
class State:
    """What training changes."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: torch.optim.lr_scheduler.LRScheduler
    epoch: int = 0
    step: int = 0
    best_accuracy: float = -math.inf
    best_epoch: int = -1

    def checkpoint(self) -> dict[str, Any]:
        """Return plain tensors and numbers, which load with `weights_only=True`."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "epoch": self.epoch,
            "step": self.step,
            "best_accuracy": self.best_accuracy,
            "best_epoch": self.best_epoch,
        }


@dataclass
class Preprocess:
    """uint8 images to normalised floats, on the device."""

    mean: Tensor
    std: Tensor
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @classmethod
    def on(cls, device: torch.device, config: Config) -> Preprocess:
        """Put the mean and the standard deviation of the data on the device."""
        mean = torch.tensor(config.data.mean, device=device).view(1, -1, 1, 1)
        std = torch.tensor(config.data.std, device=device).view(1, -1, 1, 1)
        return cls(mean, std, device)

    def __call__(self, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return images, float N x C x H x W, and labels, int64 N."""
        images = batch["image"].to(self.device, non_blocking=True)
        labels = batch["label"].to(self.device, non_blocking=True)
        return (images.float().div_(255) - self.mean) / self.std, labels


def choose_device(name: str) -> torch.device:
    """Return the device of a run; `auto` is CUDA where there is one, else the CPU.

    Raises:
        ConfigError: the device is not there.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not there.get(device.type, True) or (device.index or 0) >= max(1, torch.cuda.device_count()):
        raise ConfigError(f"device must be one that this machine has, but got device={name}")
    return device


def set_up(config: Config) -> None:
    """Seed the global generators and set torch's switches, whatever a run before this one left."""
    random.seed(config.seed)
    np.random.seed(config.seed % 2**32)
    torch.manual_seed(config.seed % 2**64)
    torch.set_num_threads(config.num_threads)
    # cuBLAS reads this when it starts; without it some products refuse to be deterministic.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(config.deterministic)
    torch.backends.cudnn.deterministic = config.deterministic
    torch.backends.cudnn.benchmark = not config.deterministic


def make_state(config: Config, device: torch.device, total_steps: int) -> State:
    """Make model, optimizer and schedule; the word `total_steps` in the schedule is replaced."""
    model: nn.Module = make(config.model, "model").to(device)
    optimizer = make(config.optimizer, "optimizer", model.parameters())
    schedule = {k: total_steps if v == "total_steps" else v for k, v in config.schedule.items()}
    return State(model, optimizer, make(schedule, "schedule", optimizer))


def fit(run: Run, loaders: Loaders, device: torch.device) -> float:
    """Train to the end.

    Returns:
        The best validation accuracy, a fraction.
    """
    config = run.config
    state = make_state(config, device, config.epochs * len(loaders.train))
    preprocess = Preprocess.on(device, config)
    describe(config, loaders, state, device)
    total_wait_s = total_s = 0.0
    for state.epoch in range(config.epochs):
        start = perf_counter()
        wait = Wait()
        train_loss, lr = train_epoch(config, state, loaders.train, preprocess, wait)
        train_s = perf_counter() - start
        val_loss, accuracy = evaluate(state.model, loaders.val, preprocess)
        if accuracy > state.best_accuracy:
            state.best_accuracy, state.best_epoch = accuracy, state.epoch
            run.save_checkpoint("best", state.checkpoint())
        run.save_checkpoint("last", state.checkpoint())
        stats = loaders.train.stats()
        epoch_s = perf_counter() - start
        row = {
            "epoch": state.epoch,
            "train_loss": train_loss,
            "val_loss": val_loss,
            "val_accuracy": accuracy,
            "lr": lr,
            "built": stats.built,
            "reused": stats.reused,
            "wait_s": round(wait.seconds, 4),
            "epoch_s": round(epoch_s, 4),
            "samples_per_s": round((stats.built + stats.reused) / train_s, 1),
        }
        run.add_metrics(row)
        report(config, row)
        total_wait_s, total_s = total_wait_s + wait.seconds, total_s + epoch_s
    log.info("run folder     %s", run.directory)
    log.info("best accuracy  %.2f %% in epoch %d", 100 * state.best_accuracy, state.best_epoch)
    log.info("input          waited for %.1f of %.1f s", total_wait_s, total_s)
    return state.best_accuracy


def train_epoch(
    config: Config, state: State, loader: Iterable[Any], preprocess: Preprocess, wait: Wait
) -> tuple[float, float]:
    """Train one epoch; return the mean loss of its samples, and the last learning rate."""
    state.model.train()
    loss_sum = torch.zeros((), dtype=torch.float64, device=preprocess.device)
    num_samples, lr = 0, 0.0
    bar = tqdm(loader, f"epoch {state.epoch}", leave=False, disable=None, unit="batch")
    for batch in wait.of(bar):
        images, labels = preprocess(batch)
        loss = train_step(config, state, images, labels)
        loss_sum += loss.detach().double() * len(labels)
        num_samples += len(labels)
        lr = state.optimizer.param_groups[0]["lr"]
        state.scheduler.step()
        state.step += 1
    mean_loss = loss_sum.item() / num_samples
    if not math.isfinite(mean_loss):
        raise FloatingPointError(f"the training loss is {mean_loss} in epoch {state.epoch}")
    return mean_loss, lr


def train_step(config: Config, state: State, images: Tensor, labels: Tensor) -> Tensor:
    """Make one update; return the mean loss of the batch."""
    state.optimizer.zero_grad(set_to_none=True)
    loss = F.cross_entropy(
        state.model(images), labels, label_smoothing=config.trainer.label_smoothing
    )
    loss.backward()
    if config.trainer.clip_norm is not None:
        nn.utils.clip_grad_norm_(state.model.parameters(), config.trainer.clip_norm)
    state.optimizer.step()
    return loss


@torch.no_grad()
def evaluate(
    model: nn.Module, loader: Iterable[Any], preprocess: Preprocess
) -> tuple[float, float]:
    """Return loss and accuracy, each the mean over samples and not over batches."""
    model.eval()
    loss_sum = torch.zeros((), dtype=torch.float64, device=preprocess.device)
    num_correct = torch.zeros((), dtype=torch.int64, device=preprocess.device)
    num_samples = 0
    for batch in loader:
        images, labels = preprocess(batch)
        logits = model(images)
        loss_sum += F.cross_entropy(logits, labels, reduction="sum").double()
        num_correct += (logits.argmax(1) == labels).sum()
        num_samples += len(labels)
    return loss_sum.item() / num_samples, num_correct.item() / num_samples


def describe(config: Config, loaders: Loaders, state: State, device: torch.device) -> None:
    """Say before the first step what is going to happen."""
    train, val = len(loaders.train.dataset), len(loaders.val.dataset)  # type: ignore[arg-type]
    parameters = sum(p.numel() for p in state.model.parameters())
    log.info(
        "%d samples for training, %d for validation, %d classes", train, val, len(loaders.classes)
    )
    log.info("%s with %d parameters on %s", type(state.model).__name__, parameters, device)
    log.info(
        "%d epochs of %d batches; a prepared sample serves %d epoch%s, seed %d",
        config.epochs,
        len(loaders.train),
        config.lifetime,
        "" if config.lifetime == 1 else "s",
        config.seed,
    )


def report(config: Config, row: dict[str, Any]) -> None:
    """Print an epoch's line."""
    log.info(
        "epoch %*d of %d  loss %.4f  val loss %.4f  accuracy %5.2f %%  built %d  reused %d  "
        "waited %.1f of %.1f s",
        len(str(config.epochs)),
        row["epoch"],
        config.epochs,
        row["train_loss"],
        row["val_loss"],
        100 * row["val_accuracy"],
        row["built"],
        row["reused"],
        row["wait_s"],
        row["epoch_s"],
    )
