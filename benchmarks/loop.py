"""What the loop costs: the template's step against a bare loop, with the same model and data.

    python benchmarks/loop.py

Both train the same batches from memory, in turns within one process; the first turn of each is
left out. Of wall-clock time and of the processor time of this process, which other programs
disturb less, it prints the fastest tenth of the turns of each, which they disturb least, and the
median of the pairs of turns with the middle half.
"""

from __future__ import annotations

import argparse
import platform
import sys
from pathlib import Path
from statistics import quantiles
from time import perf_counter, process_time
from typing import Any

import torch
from hydra import compose, initialize_config_dir
from torch.nn import functional as F

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from reuseloader import ReuseStats  # noqa: E402
from training import loop  # noqa: E402
from training.config import Config, load_config  # noqa: E402
from training.device import Preprocess, choose_device, set_up  # noqa: E402
from training.optim import Plan  # noqa: E402
from training.state import make_model, make_state  # noqa: E402
from training.timing import Clock  # noqa: E402
from training.tracking import Trackers  # noqa: E402

Batches = list[dict[str, Any]]


def bare_loop(config: Config, device: torch.device, batches: Batches) -> Any:
    """Return a function that trains one turn, as a tutorial would write it."""
    model = make_model(config, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10**6)
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


class Memory:
    """Batches in memory, in the place of a loader."""

    def __init__(self, batches: Batches) -> None:
        self.batches = batches

    def __iter__(self) -> Any:
        return iter(self.batches)

    def stats(self) -> Any:
        """Return counts, of which there are none."""
        return ReuseStats()


def template_loop(config: Config, device: torch.device, batches: Batches) -> Any:
    """Return a function that trains one turn with the template's `train_epoch`."""
    plan = Plan(epochs=10**6 // len(batches), num_batches=len(batches))
    state = make_state(config, make_model(config, device), device, plan)
    job = loop.Job(
        run=argparse.Namespace(config=config),  # type: ignore[arg-type]
        plan=plan,
        loaders=argparse.Namespace(train=Memory(batches)),  # type: ignore[arg-type]
        prepare=Preprocess(config, device),
        trackers=Trackers({}),
        clock=Clock.of(device),
    )
    return lambda: loop.train_epoch(job, state)


def seconds(turn: Any, device: torch.device) -> tuple[float, float]:
    """Time one turn, to the end of what the device has to do for it; return wall and CPU time."""
    start, cpu_start = perf_counter(), process_time()
    turn()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return perf_counter() - start, process_time() - cpu_start


def compare(name: str, bare: list[float], template: list[float], num_steps: int) -> None:
    """Print a line: the milliseconds a step of both, and what the template adds."""
    added = [100 * (ours / theirs - 1) for ours, theirs in zip(template, bare, strict=True)]
    low, middle, high = quantiles(added, n=4)
    best = [1000 * quantiles(values, n=10)[0] / num_steps for values in (bare, template)]
    print(
        f"{name:5} bare {best[0]:.3f} ms  template {best[1]:.3f} ms a step  "
        f"added {100 * (best[1] / best[0] - 1):+.1f} %, "
        f"by pairs {middle:+.1f} % ({low:+.1f} to {high:+.1f})"
    )


def main() -> None:
    """Run both in turns and compare them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--steps", type=int, default=10, help="a turn")
    parser.add_argument("overrides", nargs="*", help="of the config, such as model=resnet18")
    arguments = parser.parse_args()
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        config = load_config(compose("config", ["schedule=cosine", *arguments.overrides]))
    device = choose_device(config.device)
    set_up(config)
    size = (config.batch_size, 3, 64, 64)
    batches: Batches = [
        {
            "image": torch.randint(0, 256, size, dtype=torch.uint8),
            "label": torch.randint(config.data.num_classes, size[:1]),
        }
        for _ in range(arguments.steps)
    ]
    if device.type == "cuda":
        batches = [{k: v.pin_memory() for k, v in batch.items()} for batch in batches]
    loops = {
        "bare": bare_loop(config, device, batches),
        "template": template_loop(config, device, batches),
    }
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in loops}
    for number in range(arguments.turns + 1):
        order = list(loops) if number % 2 else list(loops)[::-1]
        for name in order:
            times[name].append(seconds(loops[name], device))
    for clock, name in enumerate(("wall", "CPU")):
        bare, template = ([turn[clock] for turn in values[1:]] for values in times.values())
        compare(name, bare, template, arguments.steps)
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    print(f"{arguments.turns} turns of {arguments.steps} steps, torch {torch.__version__}, {where}")


if __name__ == "__main__":
    main()
