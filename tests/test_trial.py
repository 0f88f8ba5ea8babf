"""A model that does not fit its data is named before the first step, and nothing has changed."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
import runs
import torch
import torch.utils.checkpoint
import torchvision
from torch import Tensor, nn

from training.checks import ConfigError
from training.device import Preprocess
from training.models import cross_entropy
from training.trial import try_evaluation, try_training


class Net(nn.Module):
    """A small model, of which a test replaces the pass."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout())
        self.head = nn.Linear(4, 10)

    def forward(self, images: Tensor) -> Any:
        return self.head(self.body(images).mean((2, 3)))


class Double(Net):
    def __init__(self) -> None:
        super().__init__()
        self.double()


class Grey(Net):
    def __init__(self) -> None:
        super().__init__()
        self.body[0] = nn.Conv2d(1, 4, 3)


class Deep(Net):
    def forward(self, images: Tensor) -> Any:
        return super().forward(nn.functional.max_pool2d(images, 100))


class Twice(Net):
    def forward(self, images: Tensor) -> Any:
        return super().forward(images), super().forward(images)


class TwiceInEvaluation(Net):
    def forward(self, images: Tensor) -> Any:
        return super().forward(images) if self.training else {"out": super().forward(images)}


class Looked(Net):
    """Adds a vector that it looks up; the gradient of the table is sparse."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(3, 10, sparse=True)

    def forward(self, images: Tensor) -> Any:
        return super().forward(images) + self.table(torch.ones(len(images), dtype=torch.int64))


class Misspelled(Net):
    def forward(self, images: Tensor) -> Any:
        return self.haed(images)


class InPlace(Net):
    def forward(self, images: Tensor) -> Any:
        output = super().forward(images).exp()
        output.sub_(1)
        return output


class OfOneSize(Net):
    def forward(self, images: Tensor) -> Any:
        return super().forward(images.view(16, 3, 64, 64))


class Counts(Net):
    """Changes itself in each pass in all the ways that a model can."""

    seen: ClassVar[list[tuple[bool, int]]] = []  # of all copies

    def __init__(self) -> None:
        super().__init__()
        self.seen.clear()
        self.num_passes = 0
        self.generator = torch.Generator().manual_seed(7)
        try:
            copy.deepcopy(self.generator)
        except TypeError:
            pytest.skip("torch 2.1 cannot copy a generator, nor a model that has one")
        self.register_buffer("center", None)

    def forward(self, images: Tensor) -> Any:
        self.seen.append((self.training, len(images)))
        self.body[1].running_mean = self.body[1].running_mean + 1
        self.num_passes += 1
        self.center = torch.rand(3, generator=self.generator)
        with torch.no_grad():
            self.head.bias.add_(1)
        return super().forward(images)


class OfItsFirstBatch(Net):
    """Needs samples that differ."""

    def forward(self, images: Tensor) -> Any:
        output = super().forward(images)
        if self.training:
            torch.distributions.Normal(output / images.mean((1, 2, 3)).std(), 1.0)
        return output


class OfCall(nn.Linear):
    def __call__(self, images: Tensor) -> Any:
        return super().__call__(images.mean((2, 3)))


class Unique(Net):
    """Cannot be copied."""

    def __deepcopy__(self, _: Any) -> Any:
        raise TypeError("there is one")

    def forward(self, images: Tensor) -> Any:
        raise AssertionError("it is not tried")


class Checkpointed(Net):
    def forward(self, images: Tensor) -> Any:
        body = torch.utils.checkpoint.checkpoint(
            self.body, images.requires_grad_(), use_reentrant=True
        )
        return self.head(body.mean((2, 3)))


class OwnError(Net):
    def forward(self, images: Tensor) -> Any:
        raise RuntimeError("my table is missing")


class OwnShape(Net):
    def forward(self, images: Tensor) -> Any:
        first, second = images.shape
        return first, second


class Endless(Net):
    def forward(self, images: Tensor) -> Any:
        return self(images)


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, ...]]:
    """The config, the loaders and the preprocessing of one run, for any model."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    few = ("data.train.limit=16", "data.val.limit=16", "trainer.mixup_alpha=1")
    with runs.begin(folder, *few) as run:
        _, loaders, device = runs.prepare(run)
        yield run.config, loaders, Preprocess(run.config, device)


@pytest.fixture
def attempt(begun: tuple[Any, ...]) -> Callable[[nn.Module], None]:
    """Try a model."""
    config, loaders, prepare = begun

    def function(model: nn.Module) -> None:
        named = {**config.model, "_target_": f"mine.{type(model).__name__}"}
        loss = partial(cross_entropy, num_classes=10)
        try_training(replace(config, model=named), model, loss, loaders, prepare)

    return function


Attempt = Callable[[nn.Module], None]

LINES = {
    Double: r"failed in body\.0 \(Conv2d\), at test_trial\.py, line \d+: .*; images are",
    Grey: r"failed in body\.0 \(Conv2d\), at test_trial\.py, line \d+: .*; data\.image",
    Deep: r"failed, at test_trial\.py, line \d+: .*; data\.image_size, data\.prepare",
    InPlace: r"failed: one of the variables needed for gradient computation has been modified by",
}


@pytest.mark.parametrize("kind", LINES)
def test_a_model_that_fails_of_the_images_is_named_with_module_shape_and_reason(
    attempt: Attempt, kind: type[nn.Module]
) -> None:
    start = rf"^model must fit images of 16 x 3 x 64 x 64, but mine\.{kind.__name__} "
    with pytest.raises(ConfigError, match=start + LINES[kind]) as caught:
        attempt(kind())

    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("kind", "got"), [(Twice, "tuple"), (TwiceInEvaluation, "dict of out")])
def test_what_is_no_logits_is_said_before_the_first_step_in_either_mode(
    attempt: Attempt, kind: type[nn.Module], got: str
) -> None:
    with pytest.raises(ConfigError, match=rf"^model must return a tensor of floats.* got {got}$"):
        attempt(kind())


DENSE = ("Adam", "AdamW", "RMSprop", "NAdam", "Adadelta", "Adamax", "RAdam", "ASGD", "Rprop")


@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")  # of torch in Adagrad
@pytest.mark.parametrize("name", [*DENSE, "SGD", "Adagrad"])
def test_an_optimizer_is_refused_where_it_would_stop_at_sparse_gradients(
    name: str, begun: tuple[Any, ...]
) -> None:
    config, loaders, prepare = begun
    model = Looked()
    model.table(torch.tensor([1])).sum().backward()
    refuses = pytest.raises(RuntimeError, match="does not support sparse gradients")
    with refuses if name in DENSE else nullcontext():
        getattr(torch.optim, name)(model.table.parameters(), lr=0.1).step()

    config = replace(config, optimizer={"_target_": f"torch.optim.{name}", "lr": 0.1})
    line = (
        rf"^optimizer must take sparse gradients, which table\.weight .* torch\.optim\.{name} does"
    )
    with pytest.raises(ConfigError, match=line) if name in DENSE else nullcontext():
        try_training(config, model, partial(cross_entropy, num_classes=10), loaders, prepare)


def test_a_weight_decay_that_sparse_gradients_do_not_go_with_is_said_as_well(
    begun: tuple[Any, ...],
) -> None:
    config, loaders, prepare = begun
    sgd = {"_target_": "torch.optim.SGD", "lr": 0.1, "weight_decay": 0.01}
    config = replace(config, optimizer=sgd)
    with pytest.raises(ConfigError, match=r"torch\.optim\.SGD does not: .* do without weight "):
        try_training(config, Looked(), partial(cross_entropy, num_classes=10), loaders, prepare)


@pytest.mark.parametrize(
    ("kind", "error", "said"),
    [
        (Misspelled, AttributeError, "haed"),
        (OwnError, RuntimeError, "my table is missing"),
        (OwnShape, ValueError, "too many values to unpack"),
        (Endless, RecursionError, "maximum recursion depth exceeded"),
    ],
)
def test_a_bug_in_a_users_own_code_keeps_its_traceback_and_is_named_in_a_note(
    attempt: Attempt, kind: type[nn.Module], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said) as caught:
        attempt(kind())

    assert caught.value.__notes__ == [
        f"in model=mine.{kind.__name__}, tried on images of 16 x 3 x 64 x 64 before the first step"
    ]


@pytest.mark.filterwarnings("ignore:.*use_reentrant")
@pytest.mark.parametrize("model", [OfItsFirstBatch, Checkpointed, Unique, lambda: OfCall(3, 10)])
def test_a_model_that_can_be_trained_is_not_refused(
    attempt: Attempt, model: Callable[[], nn.Module]
) -> None:
    attempt(model())


def test_a_model_that_takes_whole_batches_alone_is_tried_with_one(attempt: Attempt) -> None:
    attempt(OfOneSize())


def test_a_trial_changes_nothing(attempt: Attempt) -> None:
    model = Counts()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    mean, random = model.body[1].running_mean, torch.get_rng_state()
    own = model.generator.get_state()

    attempt(model)

    assert Counts.seen == [(True, 2), (False, 2)]
    assert (model.num_passes, model.center) == (0, None)
    assert torch.equal(own, model.generator.get_state())
    assert before.keys() == model.state_dict().keys()
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert model.body[1].running_mean is mean
    assert torch.equal(random, torch.get_rng_state())
    assert all(module.training for module in model.modules())
    assert all(weight.grad is None for weight in model.parameters())


def test_evaluation_alone_is_tried_in_evaluation_mode(begun: tuple[Any, ...]) -> None:
    config, loaders, prepare = begun
    model = Counts()
    try_evaluation(config, model, loaders, prepare)

    assert Counts.seen == [(False, 2)]
    assert model.training


def test_a_sample_that_cannot_be_made_is_left_to_the_epoch(begun: tuple[Any, ...]) -> None:
    config, loaders, prepare = begun

    def gone(_: Any) -> Any:
        raise OSError("gone")

    without = replace(loaders, build=gone, build_val=gone)
    try_training(config, Grey(), nn.functional.cross_entropy, without, prepare)


def test_an_operation_that_is_not_deterministic_is_answered_with_the_switch(
    attempt: Attempt,
) -> None:
    class Refuses(Net):
        def forward(self, images: Tensor) -> Any:
            raise RuntimeError("but you set 'torch.use_deterministic_algorithms(True)'. You can")

    with pytest.raises(ConfigError, match=r"; deterministic=false allows it$"):
        attempt(Refuses())


def test_a_module_of_torchvision_is_named_without_a_line_of_its_own_code(attempt: Attempt) -> None:
    model = torchvision.models.resnet18(num_classes=10)
    model.layer1[0].conv2 = nn.Conv2d(3, 64, 3)
    with pytest.raises(ConfigError, match=r"ResNet failed in layer1\.0\.conv2 \(Conv2d\): Given"):
        attempt(model)


def test_a_run_tries_its_model_before_the_first_step(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^model must fit images of 16 x 3 x 8 x 8, but "):
        runs.train(tmp_path, "data.image_size=8")

    assert not (tmp_path / "metrics.csv").exists()
    assert not (tmp_path / "checkpoints" / "last.pt").exists()
