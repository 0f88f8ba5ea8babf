"""What was measured and what follows from it, in words and tables."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from training.bounds.measure import Bounds
from training.bounds.passes import Times
from training.bounds.prediction import Prediction, choose, predict_all
from training.report.text import table

_TOGETHER = "times as slow beside training"


_OF_THE_SWEEP = ("lifetime", "seed", "num_workers", "sweep", "sweep.lifetimes")


def describe_bounds(bounds: Bounds, overrides: list[str]) -> str:
    """Return what was measured, what is predicted, and the command line to use."""
    costs = bounds.costs
    rate = bounds.batch_size / costs.step_s
    parts = [
        "\n".join(
            [
                f"build a sample     {_times(bounds.build)}",
                f"read a sample      {_times(bounds.read)}",
                f"train on a batch   {1000 * costs.step_s:.2f} ms for {bounds.batch_size} samples, "
                f"{rate:,.0f} a second ({bounds.warmup_s:.1f} s to warm up)",
                f"evaluate           {costs.eval_s:.2f} s an epoch",
                f"save a checkpoint  {costs.checkpoint_s:.2f} s",
                f"everything else    {costs.rest_s:.3f} s an epoch, "
                f"{1000 * costs.rest_batch_s:.2f} ms a batch",
            ]
        ),
        _rates(bounds),
        f"predicted seconds of an epoch after the first, {costs.num_samples:,} samples on "
        f"{costs.num_cores} cores",
        _predictions(predict_all(costs)),
        conclusion(bounds, overrides),
        f"disk the cache will take   {_bytes(bounds.cache_bytes)}",
        f"command line to use        {command(choose(predict_all(costs)), overrides)}",
    ]
    return "\n\n".join(parts)


def _times(times: Times) -> str:
    return (
        f"{1000 * times.median:.3f} ms, 95 % in under {1000 * times.p95:.3f} ms "
        f"({len(times.values)} samples)"
    )


def _rates(bounds: Bounds) -> str:
    head = (
        "num_workers",
        "samples/s at lifetime 1",
        "at full reuse",
        "memory of the workers",
        _TOGETHER,
    )
    rows = [
        (
            given.num_workers,
            f"{given.built_per_s:,.0f}",
            f"{given.reused_per_s:,.0f}",
            "not known" if given.memory_bytes is None else _bytes(given.memory_bytes),
            f"{given.building:.2f} built, {given.reading:.2f} read",
        )
        for given in bounds.costs.inputs
    ]
    return table(head, rows)


def _predictions(predictions: list[list[Prediction]]) -> str:
    counts = [one.num_workers for one in predictions[0]]
    head = ["lifetime", *(f"num_workers={count}" for count in counts)]
    rows = [
        [row[0].lifetime, *(f"{one.epoch_s:.2f} ({one.bound})" for one in row)]
        for row in predictions
    ]
    return table(head, rows)


def conclusion(bounds: Bounds, overrides: Sequence[str] = ()) -> str:
    """Return in a sentence or two when compute becomes the bound."""
    predictions = predict_all(bounds.costs)
    best = choose(predictions)
    if best.is_bound_by_compute and best.lifetime == 1:
        return (
            f"Compute is the bound already at lifetime=1 with num_workers={best.num_workers}: "
            "reuse would not help."
        )
    first = min(predictions[0], key=lambda one: one.epoch_s)
    gain = f"{first.epoch_s / best.epoch_s:.1f} times as fast an epoch as at lifetime 1"
    tried = sorted({1, best.lifetime} | {n for n in (2, 4, 8) if n < best.lifetime})
    kept = [word for word in overrides if word.partition("=")[0] not in _OF_THE_SWEEP]
    lifetimes = f"sweep.lifetimes=[{','.join(map(str, tried))}]"
    words = ["sweep=lifetimes", lifetimes, f"num_workers={best.num_workers}", *kept]
    sweep = f"python train.py {shlex.join(words)}"
    accuracy = f"Whether the accuracy is kept, a sweep will say: {sweep}"
    if best.is_bound_by_compute:
        return (
            f"Compute becomes the bound at lifetime={best.lifetime} with "
            f"num_workers={best.num_workers}: {gain}. {accuracy}"
        )
    slower = f"{best.train_s / best.compute_s:.1f} times as long as computing alone"
    why = {"input": "input", "cores": "workers and training share the cores"}
    return (
        f"No lifetime up to {predictions[-1][0].lifetime} makes compute the bound: at "
        f"lifetime={best.lifetime} with num_workers={best.num_workers} training still takes "
        f"{slower} ({why[best.bound]}), but that is {gain}. {accuracy}"
    )


def command(best: Prediction, overrides: list[str]) -> str:
    """Return the command for a prediction, with what the user typed."""
    chosen = {"lifetime": best.lifetime, "num_workers": best.num_workers}
    kept = [text for text in overrides if text.partition("=")[0] not in chosen]
    words = [*(f"{name}={value}" for name, value in chosen.items()), *kept]
    return f"python train.py {shlex.join(words)}"


def _bytes(size: float) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
