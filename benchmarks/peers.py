"""The loaders that are compared: each makes batches of the same samples, written beforehand.

Each is a function ``(samples, folder, options) -> loader``; it imports its package inside, so that
one that is not installed raises ImportError and is left out.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from reuseloader import FOREVER, ReuseDataLoader, load_tensors, save_tensors

Options = dict[str, Any]


class Samples(Dataset[Any]):
    """Images and labels in memory.

    Args:
        num_samples: how many.
        shape: of an image.
        dtype: of an image; its values are 0 to 255.
    """

    def __init__(self, num_samples: int, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        generator = torch.Generator().manual_seed(0)
        images = torch.randint(
            0, 256, (num_samples, *shape), generator=generator, dtype=torch.uint8
        )
        self.images = images.to(dtype)
        self.labels = list(range(num_samples))

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"image": self.images[index], "label": self.labels[index]}


class Indexed(Dataset[Any]):
    """A dataset of a function."""

    def __init__(self, size: int, read: Callable[[int], Any]) -> None:
        self.size = size
        self.read = read

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        return self.read(index)


def in_memory(samples: Samples, folder: Path, options: Options) -> Iterable[Any]:
    return DataLoader(samples, shuffle=True, **options)


def reuse_tensors(samples: Samples, folder: Path, options: Options) -> Iterable[Any]:
    return ReuseDataLoader(
        lambda key: samples[key.index],
        len(samples),
        folder,
        lifetime=FOREVER,
        shuffle=True,
        save=save_tensors,
        load=load_tensors,
        **options,
    )


def reuse_torch(samples: Samples, folder: Path, options: Options) -> Iterable[Any]:
    return ReuseDataLoader(
        lambda key: samples[key.index],
        len(samples),
        folder,
        lifetime=FOREVER,
        shuffle=True,
        **options,
    )


def torch_save(samples: Samples, folder: Path, options: Options) -> Iterable[Any]:
    for index in range(len(samples)):
        sample = samples[index]
        torch.save(sample | {"image": sample["image"].clone()}, folder / f"{index}.pt")
    dataset = Indexed(len(samples), lambda index: torch.load(folder / f"{index}.pt"))
    return DataLoader(dataset, shuffle=True, **options)


def tensordict_memmap(samples: Samples, folder: Path, options: Options) -> Iterable[Any]:
    from tensordict import TensorDict

    entries = {"image": samples.images, "label": torch.tensor(samples.labels)}
    stored = TensorDict(entries, batch_size=[len(samples)]).memmap(folder)
    return DataLoader(stored, shuffle=True, collate_fn=_identity, **options)


def _identity(batch: Any) -> Any:
    return batch


def diskcache(samples: Samples, folder: Path, options: Options) -> Iterable[Any]:
    from diskcache import Cache

    cache = Cache(folder, eviction_policy="none", size_limit=2**40)
    with cache.transact():
        for index in range(len(samples)):
            sample = samples[index]
            cache[index] = sample | {"image": sample["image"].numpy()}
    return DataLoader(Indexed(len(samples), cache.__getitem__), shuffle=True, **options)


def litdata(samples: Samples, folder: Path, options: Options) -> Iterable[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import litdata

        options = dict(options)
        litdata.optimize(
            fn=samples.__getitem__,
            inputs=list(range(len(samples))),
            output_dir=str(folder),
            chunk_bytes="64MB",
            num_workers=1,
            verbose=False,
        )
        dataset = litdata.StreamingDataset(str(folder), shuffle=True)
        return litdata.StreamingDataLoader(dataset, **options)


def _monai_data(samples: Samples) -> tuple[list[dict[str, int]], Callable[[Any], Any]]:
    return [{"index": i} for i in range(len(samples))], _Prepare(samples)


class _Prepare:
    def __init__(self, samples: Samples) -> None:
        self.samples = samples

    def __call__(self, item: dict[str, int]) -> Any:
        sample = self.samples[item["index"]]
        return sample | {"image": sample["image"].clone()}


def monai_persistent(samples: Samples, folder: Path, options: Options) -> Iterable[Any]:
    from monai.data import PersistentDataset

    data, prepare = _monai_data(samples)
    return DataLoader(PersistentDataset(data, prepare, folder), shuffle=True, **options)


def monai_cache(samples: Samples, folder: Path, options: Options) -> Iterable[Any]:
    from monai.data import CacheDataset

    data, prepare = _monai_data(samples)
    dataset = CacheDataset(data, prepare, num_workers=1, progress=False)
    return DataLoader(dataset, shuffle=True, **options)


logging.getLogger("litdata").setLevel(logging.ERROR)

PEERS: dict[str, Callable[[Samples, Path, Options], Iterable[Any]]] = {
    "in memory": in_memory,
    "reuseloader, fast pair": reuse_tensors,
    "reuseloader, default pair": reuse_torch,
    "torch.save files": torch_save,
    "tensordict memmap": tensordict_memmap,
    "diskcache": diskcache,
    "litdata": litdata,
    "MONAI PersistentDataset": monai_persistent,
    "MONAI CacheDataset (in memory)": monai_cache,
}
