"""What an evaluation measures, as sums over samples: a mean of means would be wrong."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from training.models import check_output


@dataclass(frozen=True)
class Evaluation:
    """The result of an evaluation.

    Attributes:
        loss: mean over samples.
        accuracy, top5_accuracy: fractions of the samples.
        confusion: int64 true class x predicted class, in samples.
        num_undefined: samples whose loss is not a number: they have no predicted class, and count
            as wrong.
    """

    loss: float
    accuracy: float
    top5_accuracy: float
    confusion: Tensor
    num_undefined: int = 0

    @property
    def num_samples(self) -> int:
        """All samples that were evaluated."""
        return int(self.confusion.sum()) + self.num_undefined

    def columns(self) -> dict[str, float]:
        """Return the values that are written down, by name."""
        return {
            "val_loss": self.loss,
            "val_accuracy": self.accuracy,
            "val_top5_accuracy": self.top5_accuracy,
        }


def monitored(values: Mapping[str, float], monitor: str) -> float:
    """Return what decides whether an evaluation is the best: NaN, never, where its loss is that."""
    return math.nan if math.isnan(values["val_loss"]) else values[monitor]


class Meters:
    """The meters of torchmetrics for one evaluation, on the device until `result`.

    Args:
        num_classes: number of logits; `top5_accuracy` counts the five largest, or all of fewer.
        device: where logits and labels lie.
    """

    def __init__(self, num_classes: int, device: torch.device) -> None:
        # Imported here: it takes two seconds, which workers started by spawn would take as well.
        from torchmetrics import SumMetric
        from torchmetrics.classification import MulticlassConfusionMatrix, MulticlassStatScores

        sums = torch.float32 if device.type == "mps" else torch.float64  # mps has no float64
        top5 = min(5, num_classes)
        self._loss = SumMetric(nan_strategy="disable").set_dtype(sums).to(device)
        self._top5 = MulticlassStatScores(
            num_classes, top_k=top5, average="micro", validate_args=False
        ).to(device)
        self._undefined = SumMetric(nan_strategy="disable").set_dtype(sums).to(device)
        self._num_classes = num_classes
        self._confusion = MulticlassConfusionMatrix(num_classes, validate_args=False).to(device)
        self._sums = sums

    def add(self, logits: Tensor, labels: Tensor, valid: Tensor | None = None) -> None:
        """Add a batch.

        Args:
            logits: float N x classes.
            labels: int64 N.
            valid: bool N; a sample that only fills up a batch is False, and is not counted.

        Raises:
            ConfigError: the model returned something else.
        """
        check_output(logits, len(labels), self._num_classes)
        if valid is not None:
            logits, labels = logits[valid], labels[valid]
        if len(labels) == 0:
            return
        losses = F.cross_entropy(logits.float(), labels, reduction="none")
        self._loss.update(losses.to(self._sums).sum())
        undefined = losses.isnan()  # torch would take NaN for the largest logit
        self._undefined.update(undefined.sum().to(self._sums))
        logits, labels = logits[~undefined], labels[~undefined]
        if len(labels) > 0:
            self._top5.update(logits, labels)
            self._confusion.update(logits, labels)

    def result(self) -> Evaluation:
        """Return the measurements; with several ranks, those of all of them together."""
        # Ratios of counts, in Python: torchmetrics would divide in 32 bits.
        with warnings.catch_warnings():  # of meters that no sample with a loss came to
            warnings.filterwarnings("ignore", "The ``compute`` method of metric", UserWarning)
            confusion = self._confusion.compute().cpu()
            num_in_top5 = int(self._top5.compute()[0])
        num_undefined = int(self._undefined.compute())
        num_samples = int(confusion.sum()) + num_undefined
        if num_samples == 0:
            return Evaluation(math.nan, math.nan, math.nan, confusion)
        return Evaluation(
            loss=float(self._loss.compute()) / num_samples,
            accuracy=int(confusion.trace()) / num_samples,
            top5_accuracy=num_in_top5 / num_samples,
            confusion=confusion,
            num_undefined=num_undefined,
        )
