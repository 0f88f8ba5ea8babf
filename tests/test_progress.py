from __future__ import annotations

import math

import pytest
import torch

from training.progress import TrainLoss


def test_the_loss_of_an_epoch_is_the_mean_over_samples() -> None:
    losses = TrainLoss()
    for step, (loss, size) in enumerate([(1.5, 4), (5.5, 4), (8.5, 2)]):
        losses.add(torch.tensor(loss), size, step)

    assert losses.window(epoch=0) == 4.5
    losses.add(torch.tensor(0.0), 10, 3)
    assert losses.window(epoch=0) == 0.0
    assert losses.mean == 2.25
    assert math.isnan(losses.window(epoch=0))


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_stops_with_its_epoch_and_step(loss: float) -> None:
    losses = TrainLoss()
    losses.add(torch.tensor(1.0), 4, 17)
    losses.add(torch.tensor(loss), 4, 18)

    with pytest.raises(FloatingPointError, match=f"training loss is {loss} in epoch 3, step 18"):
        losses.read(epoch=3)


def test_reading_in_between_does_not_begin_a_new_window() -> None:
    losses = TrainLoss()
    losses.add(torch.tensor(1.0), 1, 0)
    losses.read(epoch=0)
    losses.add(torch.tensor(4.0), 2, 1)
    losses.read(epoch=0)
    losses = TrainLoss(**losses.state_dict())  # type: ignore[arg-type]

    assert (losses.window(epoch=0), losses.mean) == (3.0, 3.0)
    assert math.isnan(losses.window(epoch=0))
