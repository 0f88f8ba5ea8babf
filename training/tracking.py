"""Curves and pictures of a run, in TensorBoard and elsewhere; none of it can stop training."""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from textwrap import shorten
from types import TracebackType
from typing import Any, Protocol

import yaml
from torch import Tensor
from torchvision.transforms.v2.functional import to_pil_image

from training.checks import ConfigError, reason
from training.distributed import ranks
from training.options import TrackerConfig
from training.randomness import aside

log = logging.getLogger("training")

_MAX_MLFLOW_PARAMS = 100  # a call, says the MLflow REST API
_EVENT_FILE = re.compile(r"events\.out\.tfevents\.(\d{10})(\..*)")
_MAX_REASON = 300  # characters; a database adds its query and its parameters


class Tracker(Protocol):
    """Where curves and pictures go; `step` counts updates."""

    def scalars(self, values: dict[str, float], step: int) -> None:
        """Add a point to each curve."""
        ...

    def picture(self, name: str, image: Tensor, step: int) -> None:
        """Show an image, uint8 3 x H x W."""
        ...

    def flush(self) -> None:
        """Write what is waiting."""
        ...

    def close(self, failed: bool) -> None:
        """Write what is left; `failed` says how the run ended."""
        ...


class TensorBoard:
    """Event files below the run folder.

    Args:
        directory: the run folder.
        settings: dotted name -> value, shown as hyperparameters.
        options: none.
        step: of a run that continues, updates made before: points of this step and of later ones
            are dropped, of which nobody knows how many the run had written when it ended.
    """

    def __init__(
        self, directory: Path, settings: dict[str, Any], options: dict[str, Any], step: int | None
    ) -> None:
        from torch.utils.tensorboard import SummaryWriter
        from torch.utils.tensorboard.summary import hparams

        others = threading.enumerate()
        if (directory / "tensorboard").exists():
            _date_back(directory / "tensorboard")
        self._writer = SummaryWriter(str(directory / "tensorboard"), purge_step=step)
        # Not add_hparams: that begins a second run in a folder named by the time.
        metrics = {"val/accuracy": 0.0, "val/loss": 0.0}
        for summary in hparams(settings, metrics):
            self._writer._get_file_writer().add_summary(summary)
        for thread in set(threading.enumerate()) - set(others):
            # What stops the one that writes is raised by the next call, and said in a line then:
            # let it not print a traceback as well.
            thread._invoke_excepthook = lambda *_: None  # type: ignore[attr-defined]

    def scalars(self, values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def picture(self, name: str, image: Tensor, step: int) -> None:
        self._writer.add_image(name, image, step)

    def flush(self) -> None:
        self._writer.flush()

    def close(self, failed: bool) -> None:
        self._writer.close()


def _date_back(directory: Path) -> None:
    """Rename event files where needed, so that those of before sort before one begun now.

    TensorBoard reads the files of a folder in the order of their names, and a name begins with
    the second at which its file was begun. Files of the same second would be in the order of
    their hosts and processes, and those of a machine whose clock is ahead would come last.
    """
    matches = [_EVENT_FILE.fullmatch(name) for name in sorted(os.listdir(directory))]
    dated = [match for match in matches if match]
    if dated and int(dated[-1][1]) >= int(time.time()):
        for number, name in enumerate(dated):
            old, new = name[0], f"events.out.tfevents.{number:010d}{name[2]}"
            (directory / old).rename(directory / new)


class Wandb:
    """A run of Weights & Biases; `options` go to `wandb.init`."""

    def __init__(
        self, directory: Path, settings: dict[str, Any], options: dict[str, Any], step: int | None
    ) -> None:
        import wandb

        self._image = wandb.Image
        self._run = wandb.init(dir=str(directory), config=settings, **options)

    def scalars(self, values: dict[str, float], step: int) -> None:
        self._run.log(values, step=step)

    def picture(self, name: str, image: Tensor, step: int) -> None:
        self._run.log({name: self._image(to_pil_image(image))}, step=step)

    def flush(self) -> None:
        pass  # its own process writes

    def close(self, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))


class Mlflow:
    """A run of MLflow; `options` name the `tracking_uri` and the `experiment`."""

    def __init__(
        self, directory: Path, settings: dict[str, Any], options: dict[str, Any], step: int | None
    ) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Param

        # What goes wrong in its database it raises as well as it logs it, with a traceback.
        logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
        self._client = MlflowClient(options.get("tracking_uri"))
        name = options.get("experiment", "reuseloader")
        known = self._client.get_experiment_by_name(name)
        experiment = known.experiment_id if known else self._client.create_experiment(name)
        run = self._client.create_run(experiment, run_name=directory.name)
        self._id = run.info.run_id
        params = [Param(name, str(value)) for name, value in settings.items()]
        for start in range(0, len(params), _MAX_MLFLOW_PARAMS):
            self._client.log_batch(self._id, params=params[start : start + _MAX_MLFLOW_PARAMS])

    def scalars(self, values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            self._client.log_metric(self._id, name, value, step=step)

    def picture(self, name: str, image: Tensor, step: int) -> None:
        self._client.log_image(self._id, to_pil_image(image), f"{name}-{step}.png")

    def flush(self) -> None:
        pass  # nothing waits

    def close(self, failed: bool) -> None:
        self._client.set_terminated(self._id, "FAILED" if failed else "FINISHED")


KINDS: dict[str, Callable[..., Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": Wandb,
    "mlflow": Mlflow,
}


class Trackers:
    """Passes everything on to the trackers of a run; one that fails is left out from there on.

    Args:
        trackers: those that are open, by name.
    """

    def __init__(self, trackers: dict[str, Tracker]) -> None:
        self._trackers = trackers

    @classmethod
    def of(cls, directory: Path, config: TrackerConfig, step: int | None = None) -> Trackers:
        """Open the trackers that the config names; of several ranks on rank 0 alone.

        Args:
            directory: the run folder; its recorded config is shown, because that holds no secret.
            config: which ones.
            step: updates made before, in a run that continues; what was shown at this step has
                to be shown again.

        Raises:
            ConfigError: a package is not installed.
        """
        if not ranks().is_main:
            return cls({})
        settings = flatten(yaml.safe_load((directory / "config.yaml").read_text()))
        wanted: dict[str, Any] = {
            "tensorboard": {} if config.tensorboard else None,
            "wandb": config.wandb,
            "mlflow": config.mlflow,
        }
        opened: dict[str, Tracker] = {}
        for name, options in wanted.items():
            if options is None:
                continue
            if find_spec(name) is None:
                extra = "train" if name == "tensorboard" else name
                raise ConfigError(
                    f"tracker.{name} needs a package that is missing: pip install '.[{extra}]'"
                )
            try:
                with aside():
                    opened[name] = KINDS[name](directory, settings, options, step)
            except Exception as error:  # whatever a service makes its client raise
                _say(name, error)
        return cls(opened)

    def __bool__(self) -> bool:
        return bool(self._trackers)

    def scalars(self, values: dict[str, float], step: int) -> None:
        """Add a point to each of some curves, named like `train/loss`."""
        self._each("scalars", values, step)

    def picture(self, name: str, draw: Callable[[], Tensor], step: int) -> None:
        """Show what `draw` returns, uint8 3 x H x W; it is called if there is a tracker."""
        if not self._trackers:
            return
        try:
            image = draw()
        except Exception as error:
            log.warning("the picture %s could not be drawn: %s", name, error)
            return
        self._each("picture", name, image, step)

    def flush(self) -> None:
        """Write what is waiting, so that a kill does not lose it."""
        self._each("flush")

    def _each(self, method: str, *arguments: Any) -> None:
        for name, tracker in list(self._trackers.items()):
            try:
                with aside():
                    getattr(tracker, method)(*arguments)
            except Exception as error:
                _say(name, error)
                del self._trackers[name]

    def __enter__(self) -> Trackers:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._each("close", kind is not None)


def _say(name: str, error: Exception) -> None:
    text = shorten(reason(error), _MAX_REASON)
    log.warning("%s failed and is left out from here on: %s", name, text)


def flatten(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a config as dotted name -> text, number or truth value, without Hydra's own part."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, dict) and value:
            if prefix or name != "hydra":
                flat |= flatten(value, f"{prefix}{name}.")
        else:
            plain = isinstance(value, (bool, int, float, str))
            flat[f"{prefix}{name}"] = value if plain else str(value)
    return flat
