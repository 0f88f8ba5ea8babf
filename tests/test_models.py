"""The network that ships with the project."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import pytest
import runs
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from training.checks import ConfigError
from training.models import SmallConvNet, check_model, cross_entropy, forward, has_batch_norm
from training.state import make_model


class Outputs(NamedTuple):
    logits: Tensor
    aux_logits: Tensor


@pytest.fixture
def model() -> SmallConvNet:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return SmallConvNet(num_classes=10)


def test_every_image_gets_one_logit_a_class(model: SmallConvNet) -> None:
    assert model(torch.zeros(2, 3, 64, 64)).shape == (2, 10)
    assert SmallConvNet(num_classes=3, in_channels=1)(torch.zeros(2, 1, 64, 64)).shape == (2, 3)


def test_the_default_has_62106_parameters(model: SmallConvNet) -> None:
    assert sum(parameter.numel() for parameter in model.parameters()) == 62_106


def test_the_width_sets_the_channels_of_the_first_convolution() -> None:
    assert SmallConvNet(num_classes=10, width=8)[0].out_channels == 8


@pytest.mark.parametrize("name", ["num_classes", "in_channels", "width"])
def test_a_size_of_nothing_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name} must be a positive integer, but got {name}=0"):
        SmallConvNet(**{"num_classes": 10, name: 0})


def test_images_of_16_pixels_are_the_smallest_that_fit(model: SmallConvNet) -> None:
    assert model.eval()(torch.zeros(1, 3, 16, 16)).shape == (1, 10)
    with pytest.raises(RuntimeError, match="too small"):
        model(torch.zeros(1, 3, 12, 12))


def test_an_image_alone_gets_the_logits_it_gets_in_a_batch_in_evaluation(
    model: SmallConvNet,
) -> None:
    images = torch.rand(4, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    model.eval()
    torch.testing.assert_close(model(images[:1]), model(images)[:1])


def test_logits_are_linear_in_the_mean_of_positive_features(model: SmallConvNet) -> None:
    images = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    *convolutions, _, _, head = model.eval()
    features = nn.Sequential(*convolutions)(images)
    assert features.min() == 0
    means = features.mean(dim=(2, 3))
    torch.testing.assert_close(model(images), means @ head.weight.T + head.bias)


def test_every_parameter_has_a_share_in_the_loss(model: SmallConvNet) -> None:
    images = torch.rand(4, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    loss = F.cross_entropy(model(images), torch.arange(4))
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    assert all(gradient.abs().max() > 0 for gradient in gradients)


def test_only_a_network_that_normalises_over_the_batch_now_is_said_to(model: SmallConvNet) -> None:
    assert has_batch_norm(model)
    assert not has_batch_norm(model.eval())
    assert not has_batch_norm(nn.Linear(2, 2))


@pytest.mark.slow
def test_a_model_of_timm_trains_from_random_weights(tmp_path: Path) -> None:
    pytest.importorskip("timm")
    name = "model.model_name=test_resnet"  # the smallest that it has

    (row,) = runs.train(tmp_path, "model=timm", name, "trainer.fast_dev_run=true")

    assert math.isfinite(row["train_loss"]) and math.isfinite(row["val_loss"])


@pytest.mark.slow
def test_a_model_that_timm_does_not_have_is_a_line(tmp_path: Path) -> None:
    pytest.importorskip("timm")

    with pytest.raises(ConfigError, match=r"^model: .*resnet19") as raised:
        runs.train(tmp_path, "model=timm", "model.model_name=resnet19")

    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("output", "got"),
    [
        (None, "NoneType"),
        ((torch.zeros(4, 3),), "tuple"),
        ({"logits": torch.zeros(4, 3)}, "dict of logits"),
        (
            Outputs(torch.zeros(4, 3), torch.zeros(4, 3)),
            "Outputs of logits, aux_logits; +model.aux_logits=false leaves auxiliary ones out, "
            "where the model takes it",
        ),
        (torch.zeros(4), "torch.float32 of shape 4"),
        (torch.zeros(4, 3, 1, 1), "torch.float32 of shape 4 x 3 x 1 x 1"),
        (torch.zeros(2, 3), "torch.float32 of shape 2 x 3"),
        (torch.zeros(4, 1000), "torch.float32 of shape 4 x 1000"),
        (torch.zeros(4, 2), "torch.float32 of shape 4 x 2"),
        (torch.zeros(4, 3, dtype=torch.int64), "torch.int64 of shape 4 x 3"),
    ],
)
def test_what_is_no_logit_a_class_is_refused_in_one_line(output: object, got: str) -> None:
    with pytest.raises(ConfigError) as caught:
        cross_entropy(output, torch.zeros(4, dtype=torch.int64), num_classes=3)
    assert str(caught.value) == (
        "model must return a tensor of floats, samples x data.num_classes, 4 x 3 for this batch, "
        f"but got {got}"
    )


def test_logits_that_nothing_learns_from_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"^model must return logits that have a gradient"):
        cross_entropy(torch.zeros(4, 3), torch.zeros(4, dtype=torch.int64), num_classes=3)


def test_a_norm_that_sees_one_value_is_said_with_the_batch_size() -> None:
    with pytest.raises(ConfigError, match=r"^batch_size must be at least 2 .* one holds 1$"):
        forward(nn.BatchNorm1d(3), torch.zeros(1, 3))


class Uncompilable(nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        kind = type("InductorError", (RuntimeError,), {"__module__": "torch._dynamo.exc"})
        raise kind("InvalidCxxCompiler: No working C++ compiler found\n\nSet TORCHDYNAMO_VERBOSE=1")


def test_a_model_that_cannot_be_compiled_is_said_with_the_switch() -> None:
    with pytest.raises(ConfigError) as caught:
        forward(Uncompilable(2, 2), torch.zeros(1, 2))
    assert str(caught.value) == (
        "trainer.compile must be false for this model on this machine, but got "
        "trainer.compile=true: InvalidCxxCompiler: No working C++ compiler found; "
        "trainer.compile=false trains without"
    )


@pytest.mark.slow
def test_where_no_compiler_is_found_training_ends_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = r"No working C\+\+ compiler|No such file or directory: 'g\+\+'"  # where one was known
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "compiled"))
    with pytest.raises(ConfigError, match=rf"^trainer\.compile must be .*({said})"):
        runs.train(tmp_path / "run", "trainer.compile=true")


@pytest.mark.parametrize("made", [None, "hello", len])
def test_what_is_no_module_is_refused(made: object) -> None:
    with pytest.raises(
        ConfigError, match=r"^model\._target_ must make a torch\.nn\.Module, but my"
    ):
        check_model(made, "my.factory")


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature:UserWarning")  # torch 2.1
def test_a_parameter_without_a_shape_is_named() -> None:
    with pytest.raises(
        ConfigError, match=r"^model must know .* but 0\.weight of my\.net is of a lazy"
    ):
        check_model(nn.Sequential(nn.LazyLinear(3)), "my.net")


def probe(num_classes: int = 10, **_: object) -> nn.Module:
    """Return the usual linear probe: all of it in evaluation mode but for the head."""
    body = nn.Sequential(nn.BatchNorm2d(3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model = nn.Sequential(body, nn.Linear(3, num_classes))
    model.requires_grad_(False).eval()
    model[1].requires_grad_(True).train()
    return model


def test_of_a_linear_probe_each_module_keeps_its_mode(tmp_path: Path) -> None:
    runs.train(tmp_path, "model._target_=test_models.probe", "epochs=2")

    norm = {name: value.tolist() for name, value in runs.load(tmp_path)["model"].items()}
    assert norm["0.0.running_mean"] == [0.0] * 3
    assert norm["0.0.num_batches_tracked"] == 0


def test_a_model_in_evaluation_mode_trains_and_it_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = runs.make_config()
    config.model["_target_"] = "test_models.sleeping"
    with caplog.at_level("INFO", "training"):
        model = make_model(config, torch.device("cpu"))

    assert all(module.training for module in model.modules())
    assert [record.getMessage() for record in caplog.records] == [
        "the model was made in evaluation mode: all of it is put into training mode"
    ]


def sleeping(**_: object) -> nn.Module:
    return nn.Sequential(nn.Linear(2, 2), nn.Dropout()).eval()
