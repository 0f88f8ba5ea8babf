"""How much of what it reuses a rank finds in its own folder, by the rule that deals the samples.

    python benchmarks/ownership.py                    10^6 samples, all of them, and 10^8
    python benchmarks/ownership.py --plot             draw what was kept, count nothing

A use is local if this rank has used the sample before, in the same generation: then the sample
lies in its folder. Of each generation the first use is a build, so the limit is
``1 - 1 / lifetime``. Nothing is trained or stored: all of it is arithmetic on the owners.

- generation-keyed: ``EpochOrder``, which moves a sample only between its generations;
- DistributedSampler: torch's rule, position t of ``randperm(size)`` seeded with ``seed + epoch``
  goes to rank ``t % num_replicas``; for 10^8 samples by the formula that is printed beside the
  count for 10^6;
- static shard: index i always goes to rank ``i % num_replicas``.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import environment, keep, one_thread, show, table
from torch.utils.data import DistributedSampler

from reuseloader import EpochOrder, ReusePolicy

HERE = Path(__file__).parent
LIFETIMES, RANKS = [2, 4, 8], [2, 8, 64, 1_024]
COUNTED, LARGE = 10**6, 10**8
SEED = 0
OURS, TORCH, STATIC = "generation-keyed", "DistributedSampler", "static shard"

Owners = Callable[[int], np.ndarray]


def generation_keyed(size: int, num_ranks: int, lifetime: int, indices: np.ndarray) -> Owners:
    policy = ReusePolicy(lifetime, SEED)
    order = EpochOrder(policy=policy, size=size, num_replicas=num_ranks)
    return lambda epoch: order.owner(indices, epoch)


class Permutations:
    """The positions of all indices in torch's shuffled epochs."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._positions: dict[int, np.ndarray] = {}

    def positions(self, epoch: int) -> np.ndarray:
        if epoch not in self._positions:
            order = torch.randperm(self.size, generator=torch.Generator().manual_seed(SEED + epoch))
            positions = np.empty(self.size, np.int32)
            positions[order.numpy()] = np.arange(self.size, dtype=np.int32)
            self._positions[epoch] = positions
        return self._positions[epoch]

    def owners(self, num_ranks: int) -> Owners:
        return lambda epoch: self.positions(epoch) % num_ranks


def check_rule_of_torch(size: int = 1_003, num_ranks: int = 8) -> None:
    """Compare ``Permutations`` with torch's own sampler, the padding left out."""
    owners = Permutations(size).owners(num_ranks)(3)
    for rank in range(num_ranks):
        sampler = DistributedSampler(range(size), num_ranks, rank, seed=SEED)  # type: ignore[arg-type]
        sampler.set_epoch(3)
        own = list(sampler)[: (size - rank + num_ranks - 1) // num_ranks]
        assert sorted(own) == np.flatnonzero(owners == rank).tolist()


def local_share(owners: Owners, indices: np.ndarray, lifetime: int) -> float:
    """Return the share of local uses, as the mean over an epoch of each kind."""
    epochs = range(1, 3 * lifetime - 1)  # after the short generations of the beginning
    where = {epoch: owners(epoch) for epoch in epochs}
    shares = []
    for epoch in range(2 * lifetime - 1, 3 * lifetime - 1):
        use = (epoch + indices % lifetime) % lifetime
        local = np.zeros(len(indices), bool)
        for back in range(1, lifetime):
            local |= (use >= back) & (where[epoch - back] == where[epoch])
        shares.append(local.mean())
    return statistics.mean(shares)


def formula(num_ranks: int, lifetime: int) -> float:
    """Return the share for owners drawn anew in every epoch: of u earlier uses one was here."""
    return statistics.mean(1 - (1 - 1 / num_ranks) ** use for use in range(lifetime))


def moving_share(owners: Owners, indices: np.ndarray, lifetime: int) -> float:
    """Return the share of samples that a new generation brings to another rank."""
    epoch = 2 * lifetime
    new = (epoch + indices % lifetime) % lifetime == 0
    return float((owners(epoch)[new] != owners(epoch - 1)[new]).mean())


def measure(num_sampled: int) -> dict[str, Any]:
    check_rule_of_torch()
    permutations = Permutations(COUNTED)
    everything = np.arange(COUNTED)
    sample = np.random.default_rng(0).integers(0, LARGE, num_sampled)
    rows = []
    for lifetime in LIFETIMES:
        for num_ranks in RANKS:
            start = time.perf_counter()
            counted = {
                OURS: generation_keyed(COUNTED, num_ranks, lifetime, everything),
                TORCH: permutations.owners(num_ranks),
                STATIC: lambda epoch, num=num_ranks: everything % num,
            }
            large = generation_keyed(LARGE, num_ranks, lifetime, sample)
            rows.append(
                {
                    "lifetime": lifetime,
                    "ranks": num_ranks,
                    "counted": {
                        name: local_share(owners, everything, lifetime)
                        for name, owners in counted.items()
                    },
                    "moving": {
                        name: moving_share(owners, everything, lifetime)
                        for name, owners in counted.items()
                    },
                    "large": {
                        OURS: local_share(large, sample, lifetime),
                        TORCH: formula(num_ranks, lifetime),
                    },
                }
            )
            print(f"lifetime {lifetime}, {num_ranks} ranks: {time.perf_counter() - start:.0f} s")
    return {"rows": rows, "counted": COUNTED, "large": LARGE, "sampled": num_sampled}


def report(results: dict[str, Any]) -> str:
    head = [
        "lifetime",
        "ranks",
        "limit",
        *(f"{OURS}, 10^6", f"{OURS}, 10^8"),
        *(f"{TORCH}, 10^6", f"{TORCH}, formula"),
        f"{STATIC}, 10^6",
    ]
    rows = []
    for row in results["rows"]:
        counted, large = row["counted"], row["large"]
        shares = [
            1 - 1 / row["lifetime"],
            *(counted[OURS], large[OURS], counted[TORCH], large[TORCH], counted[STATIC]),
        ]
        rows.append([row["lifetime"], f"{row['ranks']:,}", *(f"{share:.3f}" for share in shares)])
    moves = table(
        ["ranks", *(f"moves, {name}" for name in (OURS, TORCH, STATIC))],
        [
            [f"{row['ranks']:,}", *(f"{row['moving'][name]:.3f}" for name in (OURS, TORCH, STATIC))]
            for row in results["rows"]
            if row["lifetime"] == 4
        ],
    )
    return (
        f"{table(head, rows)}\n\nAt 10^8 the owners of {results['sampled']:,} indices drawn at "
        "random were computed, at 10^6 those of all.\n\nShare of the samples that a new "
        f"generation brings to another rank, lifetime 4, 10^6 samples:\n\n{moves}"
    )


def plot(results: dict[str, Any], path: Path) -> None:
    """Draw the local share over the number of ranks."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axis = plt.subplots(figsize=(6, 3.8))
    for color, lifetime in enumerate(LIFETIMES):
        rows = [row for row in results["rows"] if row["lifetime"] == lifetime]
        ranks = [row["ranks"] for row in rows]
        style = {"color": f"C{color}"}
        for name, line in {OURS: "o-", TORCH: "s--"}.items():
            axis.plot(ranks, [row["counted"][name] for row in rows], line, **style)
        shares = [row["counted"][STATIC] for row in rows]
        axis.plot(ranks, shares, "o", markersize=11, fillstyle="none", **style)
        axis.annotate(
            f"lifetime {lifetime}", (ranks[-1], shares[-1]), (0, -16), textcoords="offset points",
            ha="right", **style,
        )  # fmt: skip
    for name, line, size in [(OURS, "o-", 6), (STATIC, "o", 11), (TORCH, "s--", 6)]:
        fill = "none" if name == STATIC else "full"
        axis.plot([], [], line, color="gray", markersize=size, fillstyle=fill, label=name)
    axis.set_xscale("log", base=2)
    axis.set_xticks(RANKS, [f"{num:,}" for num in RANKS])
    axis.set_ylim(0, 1)
    axis.set_xlabel("ranks, each with a folder of its own")
    axis.set_ylabel("uses found in the own folder")
    axis.legend(loc="center right", bbox_to_anchor=(1, 0.26))
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sampled", type=int, default=10**6, help="of the 10^8 indices")
    parser.add_argument("--output", type=Path, default=HERE / "results" / "ownership.json")
    parser.add_argument("--plot", action="store_true", help="draw what was kept, count nothing")
    args = parser.parse_args()
    if not args.plot:
        one_thread()
        kept = {"environment": environment(), "results": measure(args.sampled)}
        keep(args.output, kept)
    show(args.output, report, plot)


if __name__ == "__main__":
    main()
