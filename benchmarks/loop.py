"""What the loop costs: the template's step against a bare loop, with the same model and data.

    python benchmarks/loop.py                  200 turns of 10 steps of each, in a few minutes
    python benchmarks/loop.py --quick          to see that it works
    python benchmarks/loop.py device=cuda model=resnet18 batch_size=64

Both train the same batches from memory, in turns within one process, and come to the same weights;
the first turn of each is left out. The template's turn is `train_epoch` of `training/loop.py` with
all that a run has around it, so also a point of the training curves every 10 updates. Of
wall-clock time and of the processor time of this process, which other programs disturb less, it
prints the fastest tenth of the turns of each, which they disturb least, and the median of the
pairs of turns with the middle half.
"""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import quantiles
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import Any

import torch
from hydra import compose, initialize_config_dir
from torch import nn
from torch.nn import functional as F

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from reuseloader import ReuseDataLoader  # noqa: E402
from training.config import Config, load_config  # noqa: E402
from training.curriculum import expand  # noqa: E402
from training.device import Preprocess, choose_device, set_up  # noqa: E402
from training.loaders import Loaders, make_loaders  # noqa: E402
from training.loop import Job, train_epoch  # noqa: E402
from training.models import has_batch_norm  # noqa: E402
from training.optim import Plan  # noqa: E402
from training.records import Record, Run  # noqa: E402
from training.resolved import resolved  # noqa: E402
from training.state import make_model, make_state  # noqa: E402
from training.timing import Clock  # noqa: E402
from training.tracking import Trackers  # noqa: E402

Batches = list[dict[str, Any]]
Turn = Callable[[], None]

_MANY_TURNS = 10**6  # of which a schedule is made: the rate hardly moves


def bare_loop(config: Config, model: nn.Module, batches: Batches, device: torch.device) -> Turn:
    """Return a function that trains one turn, as a tutorial would write it."""
    options = {name: config.optimizer[name] for name in ("lr", "weight_decay")}
    optimizer = torch.optim.AdamW(model.parameters(), **options)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, _MANY_TURNS * len(batches))
    mean = torch.tensor(config.data.mean, device=device).view(1, -1, 1, 1)
    std = torch.tensor(config.data.std, device=device).view(1, -1, 1, 1)

    def turn() -> None:
        model.train()
        loss_sum = torch.zeros((), device=device)
        for batch in batches:
            images = batch["image"].to(device, non_blocking=True)
            labels = batch["label"].to(device, non_blocking=True)
            images = (images.float().div_(255) - mean) / std
            loss = F.cross_entropy(model(images), labels)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            schedule.step()
            loss_sum += loss.detach()
        loss_sum.item()

    return turn


class Memory(ReuseDataLoader):
    """A loader in every respect, but that its batches lie in memory."""

    def __init__(self, batches: Batches, directory: Path) -> None:
        size = len(batches[0]["label"])
        super().__init__(dict, len(batches) * size, directory, lifetime=1, batch_size=size)
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        return iter(self._batches)


def template_loop(run: Run, model: nn.Module, loaders: Loaders, device: torch.device) -> Turn:
    """Return a function that trains one turn with the template's `train_epoch`."""
    plan = Plan(epochs=_MANY_TURNS, num_batches=len(loaders.train))
    state = make_state(run.config, model, device, plan)
    job = Job(
        run=run,
        plan=plan,
        loaders=loaders,
        prepare=Preprocess(run.config, device),
        trackers=Trackers.of(run.directory, run.config.tracker),
        clock=Clock.of(device),
    )

    def turn() -> None:
        state.begin_epoch(state.epoch + 1)
        train_epoch(job, state)

    return turn


@contextmanager
def begin(overrides: Sequence[str]) -> Iterator[Run]:
    """Begin a run in a folder that is removed at the end."""
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        composed = compose("config", ["schedule=cosine", "schedule.warmup=0", *overrides])
    config = load_config(composed)
    table = expand(composed, config.curriculum.table)
    record = Record(config=resolved(composed), overrides=[*overrides], curriculum=table)
    with TemporaryDirectory() as folder, Run(Path(folder) / "run", config, record) as run:
        yield run


def make_batches(config: Config, num_batches: int, device: torch.device) -> Batches:
    """Return batches of noise as the loader would give them: for CUDA in pinned memory."""
    size = (config.batch_size, 3, 64, 64)
    batches: Batches = [
        {
            "image": torch.randint(0, 256, size, dtype=torch.uint8),
            "label": torch.randint(config.data.num_classes, size[:1]),
        }
        for _ in range(num_batches)
    ]
    if device.type == "cuda":
        batches = [{k: v.pin_memory() for k, v in batch.items()} for batch in batches]
    return batches


def seconds(turn: Turn, device: torch.device) -> tuple[float, float]:
    """Time one turn, to the end of what the device has to do for it; return wall and CPU time."""
    start, cpu_start = perf_counter(), process_time()
    turn()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return perf_counter() - start, process_time() - cpu_start


def compare(name: str, bare: list[float], template: list[float], num_steps: int) -> None:
    """Print a line: the milliseconds a step of both, and what the template adds."""
    added = [100 * (ours / theirs - 1) for ours, theirs in zip(template, bare, strict=True)]
    low, middle, high = quantiles(added, n=4, method="inclusive")
    tenths = [quantiles(values, n=10, method="inclusive")[0] for values in (bare, template)]
    best = [1000 * value / num_steps for value in tenths]
    print(
        f"{name:5} bare {best[0]:.3f} ms  template {best[1]:.3f} ms a step  "
        f"added {100 * (best[1] / best[0] - 1):+.1f} %, "
        f"by pairs {middle:+.1f} % ({low:+.1f} to {high:+.1f})"
    )


def measure(run: Run, num_turns: int, num_steps: int) -> dict[str, nn.Module]:
    """Run both in turns and compare them; return the two models, trained alike."""
    device = choose_device(run.config.device)
    models = {}
    for name in ("bare", "template"):
        set_up(run.config)  # seeds them alike
        models[name] = make_model(run.config, device)
    loaders = make_loaders(run, device, drop_single=has_batch_norm(models["template"]))
    batches = make_batches(run.config, num_steps, device)
    loaders = replace(loaders, train=Memory(batches, run.cache / "memory"))
    turns = {
        "bare": bare_loop(run.config, models["bare"], batches, device),
        "template": template_loop(run, models["template"], loaders, device),
    }
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in turns}
    for number in range(num_turns + 1):
        order = list(turns) if number % 2 else list(turns)[::-1]
        for name in order:
            times[name].append(seconds(turns[name], device))
    for clock, name in enumerate(("wall", "CPU")):
        bare, template = ([turn[clock] for turn in values[1:]] for values in times.values())
        compare(name, bare, template, num_steps)
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    print(f"{num_turns} turns of {num_steps} steps, torch {torch.__version__}, {where}")
    return models


def main(line: Sequence[str] | None = None) -> dict[str, nn.Module]:
    """Measure as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--steps", type=int, default=10, help="a turn")
    parser.add_argument("--quick", action="store_true", help="two turns of three steps")
    parser.add_argument("overrides", nargs="*", help="of the config, such as model=resnet18")
    arguments = parser.parse_args(line)
    turns, steps = (2, 3) if arguments.quick else (arguments.turns, arguments.steps)
    with begin(arguments.overrides) as run:
        return measure(run, turns, steps)


if __name__ == "__main__":
    main()
