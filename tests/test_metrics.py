from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from training.metrics import Meters, monitored

CPU = torch.device("cpu")


def logits_with_losses(losses: torch.Tensor) -> torch.Tensor:
    """Return logits of two classes whose cross entropy with label 0 is `losses`."""
    others = torch.log(torch.expm1(losses.double()))
    return torch.stack([torch.zeros_like(others), others], 1).clamp(min=-1e9)


def test_the_loss_is_the_mean_over_samples_and_not_over_batches() -> None:
    meters = Meters(2, CPU)
    for losses in torch.arange(10).split(4):
        meters.add(logits_with_losses(losses), torch.zeros(len(losses), dtype=torch.int64))

    assert pytest.approx(meters.result().loss, abs=1e-6) == 4.5


def test_samples_that_only_fill_up_a_batch_are_not_counted() -> None:
    meters = Meters(2, CPU)
    labels = torch.zeros(4, dtype=torch.int64)
    for losses in (torch.tensor([0, 1, 2, 3]), torch.tensor([4, 5, 99, 99])):
        meters.add(logits_with_losses(losses), labels, valid=losses < 99)
    meters.add(logits_with_losses(torch.full((4,), 99)), labels, valid=labels == 1)

    result = meters.result()

    assert pytest.approx(result.loss, abs=1e-6) == 2.5
    assert result.confusion.sum() == 6


@pytest.mark.parametrize("num_classes", [2, 4, 5, 12])
def test_ragged_batches_give_what_all_samples_together_give(num_classes: int) -> None:
    generator = torch.Generator().manual_seed(num_classes)
    logits = torch.randn(357, num_classes, generator=generator)
    labels = torch.randint(num_classes, (357,), generator=generator)
    meters = Meters(num_classes, CPU)
    for part in torch.arange(357).split(50):
        meters.add(logits[part], labels[part])

    result = meters.result()

    ranked = logits.argsort(1, descending=True)
    top5 = (ranked[:, : min(5, num_classes)] == labels[:, None]).any(1).sum().item() / 357
    confusion = torch.zeros(num_classes, num_classes, dtype=torch.int64)
    for true, predicted in zip(labels.tolist(), ranked[:, 0].tolist(), strict=True):
        confusion[true, predicted] += 1
    assert F.cross_entropy(logits.double(), labels).item() == pytest.approx(result.loss, rel=1e-6)
    assert (ranked[:, 0] == labels).sum().item() / 357 == result.accuracy
    assert top5 == result.top5_accuracy
    assert torch.equal(confusion, result.confusion)


def test_a_loss_that_is_not_a_number_is_not_hidden() -> None:
    meters = Meters(2, CPU)
    meters.add(torch.tensor([[math.nan, 0.0]]), torch.tensor([0]))
    meters.add(torch.tensor([[1.0, 0.0]]), torch.tensor([0]))

    assert math.isnan(meters.result().loss)


def test_a_sample_without_a_number_for_a_loss_is_never_right() -> None:
    nan, inf = math.nan, math.inf
    meters = Meters(2, CPU)
    logits = [[nan, 0.0], [0.0, nan], [inf, 0.0], [nan, nan], [1.0, 0.0], [-inf, 0.0]]
    meters.add(torch.tensor(logits[:4]), torch.tensor([0, 1, 0, 0]))
    meters.add(torch.tensor(logits[4:]), torch.tensor([0, 1]))

    result = meters.result()

    assert (result.num_undefined, result.num_samples) == (4, 6)
    assert (result.accuracy, result.top5_accuracy) == (2 / 6, 2 / 6)
    assert result.confusion.tolist() == [[1, 0], [0, 1]]


def test_where_no_sample_has_a_loss_all_are_wrong_and_nothing_is_warned() -> None:
    meters = Meters(2, CPU)
    meters.add(torch.full((3, 2), math.nan), torch.tensor([0, 1, 0]))

    result = meters.result()

    assert (result.num_undefined, result.num_samples, result.accuracy) == (3, 3, 0.0)
    assert math.isnan(result.loss) and result.confusion.sum() == 0


def test_an_evaluation_without_a_loss_is_never_the_best() -> None:
    assert math.isnan(monitored({"val_loss": math.nan, "val_accuracy": 0.9}, "val_accuracy"))
    assert monitored({"val_loss": 0.5, "val_accuracy": 0.9}, "val_accuracy") == 0.9
