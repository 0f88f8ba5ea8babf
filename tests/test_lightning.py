"""The loader inside Lightning: a fit that is continued sees the samples of one in one go."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from functools import partial
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
        seen: list[list[int]] = []
        state: Any = None
        loader = make(tmp_path / f"first-{taken}")
        for epoch, batches in passes_of_lightning(loader, None, 0):
            assert epoch == len(seen) // NUM_BATCHES
            for _ in range(NUM_BATCHES):  # counted, never asked for one more
                seen.append(next(batches)["index"].tolist())
                if len(seen) == taken:
                    state = json.loads(json.dumps(loader.state_dict()))
        assert seen == expected
        first, skip = divmod(taken, NUM_BATCHES)
        rest = []
        loader = make(tmp_path / f"second-{taken}")
        # At the end of an epoch the state is not loaded: the next one begins.
        for _, batches in passes_of_lightning(loader, state if skip else None, first):
            rest += [next(batches)["index"].tolist() for _ in range(NUM_BATCHES - skip)]
            skip = 0
        assert rest == expected[taken:]


def passes_of_lightning(loader: Any, state: Any, first: int) -> Iterator[tuple[int, Any]]:
    """Make the calls of a fit: the first pass is started before anybody tells its epoch."""
    if state is not None:
        loader.load_state_dict(state)
    batches = iter(loader)
    for epoch in range(first, EPOCHS):
        loader.sampler.set_epoch(epoch)
        if epoch > first:
            batches = iter(loader)
        yield epoch, batches


@pytest.mark.parametrize("options", [{}, {"num_workers": 2, "persistent_workers": True}])
def test_a_pass_that_nothing_was_asked_of_follows_what_the_sampler_is_told(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    expected = seen_in_one_go(tmp_path / "whole")
    loader = make(tmp_path / "samples", **options)
    batches = iter(loader)
    loader.sampler.set_epoch(2)
    assert [batch["index"].tolist() for batch in batches] == expected[2 * NUM_BATCHES :]
    assert loader.stats().built == SIZE
    assert loader.state_dict()["epoch"] == 3
    batches = iter(loader)
    next(batches)
    loader.sampler.set_epoch(1)  # while a pass goes on: of the next one
    assert loader.epoch == 4
    assert len(list(batches)) == NUM_BATCHES - 1
    assert [b["index"].tolist() for b in loader] == expected[NUM_BATCHES : 2 * NUM_BATCHES]
    assert loader.epoch == 2


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # which torchdata calls
def test_a_plain_loop_goes_on_as_with_torchdata_s_own_loader(tmp_path: Path) -> None:
    pytest.importorskip("torchdata")
    from torchdata.stateful_dataloader import StatefulDataLoader

    data = [{"index": index} for index in range(SIZE)]

    def theirs() -> Any:
        return StatefulDataLoader(data, batch_size=BATCH_SIZE)  # type: ignore[arg-type]

    def ours() -> Any:
        return make(tmp_path / "samples", shuffle=False)

    def passes(loader: Any) -> list[Any]:
        return [[batch["index"].tolist() for batch in loader] for _ in range(2)]

    for taken in range(NUM_BATCHES + 2):  # the last one asks once more, and the pass ends
        found = []
        for kind in (ours, theirs):
            loader = kind()
            iterator = iter(loader)
            for _ in range(taken):
                next(iterator, None)
            state = loader.state_dict()
            del iterator, loader
            again = kind()
            again.load_state_dict(state)
            found.append(passes(again))
            del again
        assert found[0] == found[1], taken


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
    every: Any = partial(lightning.callbacks.ModelCheckpoint, folder, save_top_k=-1)
    every_step = every(filename="{step}", every_n_train_steps=1)
    every_epoch = every(filename="{epoch}", every_n_epochs=1, save_on_train_epoch_end=True)
    trainer = lightning.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        devices=1,
        callbacks=[every_step, every_epoch],
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
    for name, done in {
        **{f"step={step}": step for step in (1, NUM_BATCHES - 1, 8, 17)},
        **{f"epoch={epoch}": (epoch + 1) * NUM_BATCHES for epoch in range(EPOCHS)},
    }.items():
        checkpoint = tmp_path / "whole" / f"{name}.ckpt"
        part = fit(lightning, tmp_path / f"from-{name}", num_workers, checkpoint)
        assert part.seen == expected[done:], name
        assert torch.equal(part.layer.weight, whole.layer.weight)
