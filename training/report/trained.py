"""What was trained, in a line: the model, its batches, its data, and what computed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from training.report.history import History

_MAX_VALUES = 4  # of which each is named; of more, the first and the last


def trained(histories: Sequence[History]) -> str:
    """Return what some runs trained, and on what; values in which they differ stand side by side.

    What an older log does not say is left out.
    """
    parts = [
        _joined(_model(history) for history in histories),
        _joined(_batch(history) for history in histories),
        _workers(histories),
        f"lifetime {_values(history.lifetime for history in histories)}",
        _joined(_data(history) for history in histories),
        f"on {_joined(_device(history) for history in histories)}",
        f"torch {_joined(_torch(history) for history in histories)}",
    ]
    return ", ".join(part for part in parts if part)


def _model(history: History) -> str:
    model = history.config.get("model") or {}
    name = str(model.get("_target_", "unknown model")).rpartition(".")[2]
    if name == "create_model":  # of timm, which makes many
        name = str(model.get("model_name", name))
    number = history.told.num_parameters
    return name if number is None else f"{name} ({number:,} parameters)"


def _batch(history: History) -> str:
    text = f"batch size {history.config.get('batch_size', 'unknown')}"
    ranks = history.environment.get("ranks", {}).get("world_size", 1)
    return text if ranks == 1 else f"{text} on each of {ranks} ranks"


def _workers(histories: Sequence[History]) -> str:
    numbers = _values(int(h.config.get("num_workers", 0)) for h in histories)
    return f"{numbers} worker{'' if numbers == '1' else 's'}"


def _data(history: History) -> str:
    told = history.told
    if told.num_train is None:
        return ""
    return f"{told.num_train:,} samples for training and {told.num_val or 0:,} for validation"


def _device(history: History) -> str:
    device = history.told.device or str(history.config.get("device", "an unknown device"))
    gpus = sorted(set(history.environment.get("gpu", [])))
    return f"{device} ({' and '.join(gpus)})" if gpus and device.startswith("cuda") else device


def _torch(history: History) -> str:
    return str(history.environment.get("packages", {}).get("torch", "unknown"))


def _joined(texts: Iterable[str]) -> str:
    return " or ".join(dict.fromkeys(texts))


def _values(values: Iterable[int]) -> str:
    """Return numbers in order, each once: `2`, `1 and 2`, `1, 2 and 4`, `1 to 16`."""
    words = [str(value) for value in sorted(set(values))]
    if len(words) > _MAX_VALUES:
        return f"{words[0]} to {words[-1]}"
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]
