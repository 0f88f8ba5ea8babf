"""Sample reuse for PyTorch: a prepared sample serves ``lifetime`` consecutive epochs."""

from reuseloader.dataset import ReuseDataset
from reuseloader.folder import FolderInUseError
from reuseloader.loader import ReuseDataLoader
from reuseloader.mixing import mix
from reuseloader.order import EpochOrder
from reuseloader.permutation import permute
from reuseloader.policy import FOREVER, ReuseKey, ReusePolicy
from reuseloader.residency import resident_share
from reuseloader.sample import Substitute, seeded
from reuseloader.sampler import ReuseSampler
from reuseloader.slots import SlotRecords
from reuseloader.stats import ReuseStats
from reuseloader.store import load_torch, save_torch
from reuseloader.tensors import load_tensors, save_tensors
from reuseloader.verify import ImpureBuildError

__all__ = [
    "FOREVER",
    "EpochOrder",
    "FolderInUseError",
    "ImpureBuildError",
    "ReuseDataLoader",
    "ReuseDataset",
    "ReuseKey",
    "ReusePolicy",
    "ReuseSampler",
    "ReuseStats",
    "SlotRecords",
    "Substitute",
    "load_tensors",
    "load_torch",
    "mix",
    "permute",
    "resident_share",
    "save_tensors",
    "save_torch",
    "seeded",
]
