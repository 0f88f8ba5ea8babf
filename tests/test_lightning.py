"""The loader inside Lightning: a fit that is continued sees the samples of one in one go."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from builds import draw
from torch import nn

from reuseloader import ReuseDataLoader

SIZE, BATCH_SIZE, EPOCHS = 23, 4, 3  # 6 batches an epoch
NUM_BATCHES = 6


def make(folder: Path, **options: Any) -> ReuseDataLoader:
    settings = {"lifetime": 2, "seed": 7, "shuffle": True, "batch_size": BATCH_SIZE}
    return ReuseDataLoader(draw, SIZE, folder, **(settings | options))


def seen_in_one_go(folder: Path) -> list[list[int]]:
    loader = make(folder)
    return [batch["index"].tolist() for _ in range(EPOCHS) for batch in loader]


def test_the_calls_that_lightning_makes_continue_a_pass(tmp_path: Path) -> None:
    expected = seen_in_one_go(tmp_path / "whole")
    for taken in range(1, EPOCHS * NUM_BATCHES + 1):
        first = make(tmp_path / f"first-{taken}")
        seen: list[list[int]] = []
        state: Any = None
        for epoch in range(EPOCHS):
            first.set_epoch(epoch)
            for batch in first:
                seen.append(batch["index"].tolist())
                if len(seen) == taken:  # a checkpoint after a step, while the pass goes on
                    state = json.loads(json.dumps(first.state_dict()))
        assert seen == expected
        second = make(tmp_path / f"second-{taken}")
        second.load_state_dict(state)
        rest = []
        for epoch in range((taken - 1) // NUM_BATCHES, EPOCHS):
            second.set_epoch(epoch)  # after the state was loaded, and before every pass
            rest += [batch["index"].tolist() for batch in second]
        assert rest == expected[taken:]


@pytest.fixture
def lightning() -> Any:
    pytest.importorskip("lightning")
    return importlib.import_module("lightning.pytorch")


def fit(lightning: Any, folder: Path, num_workers: int, checkpoint: Path | None = None) -> Any:
    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 1)
            self.seen: list[list[int]] = []

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            self.seen.append(batch["index"].tolist())
            return self.layer(batch["x"]).square().mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    torch.manual_seed(0)
    module = Module()
    every_step = lightning.callbacks.ModelCheckpoint(
        folder, filename="{step}", every_n_train_steps=1, save_top_k=-1
    )
    trainer = lightning.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        devices=1,
        callbacks=[every_step],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    loader = make(folder / "samples", num_workers=num_workers)
    trainer.fit(module, loader, ckpt_path=checkpoint)
    return module


@pytest.mark.filterwarnings("default")  # its packages warn of each other, and of few workers
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_fit_of_lightning_goes_on_with_the_following_batch(
    lightning: Any, tmp_path: Path, num_workers: int
) -> None:
    expected = seen_in_one_go(tmp_path / "plain")
    whole = fit(lightning, tmp_path / "whole", num_workers)
    assert whole.seen == expected
    for step in (1, NUM_BATCHES - 1, NUM_BATCHES, 8, 2 * NUM_BATCHES, 17):
        checkpoint = tmp_path / "whole" / f"step={step}.ckpt"
        part = fit(lightning, tmp_path / f"from-{step}", num_workers, checkpoint)
        assert part.seen == expected[step:], step
        assert torch.equal(part.layer.weight, whole.layer.weight)
