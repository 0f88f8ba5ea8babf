"""What a pass did, and how long it took."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ReuseStats:
    """What was done, and how long it took, summed over workers.

    Attributes:
        built: samples that ``build`` made.
        reused: samples read from the folder.
        stored: samples written to the folder.
        damaged: files that could not be used and were built again.
        save_errors: samples that could not be written.
        substituted: of those built, stand-ins for samples that could not be made.
        build_s: seconds in ``build``.
        read_s: seconds reading and checking files that were reused.
        read_bytes: size of the files that were reused.
        written_bytes: size of the files that were written.
    """

    built: int = 0
    reused: int = 0
    stored: int = 0
    damaged: int = 0
    save_errors: int = 0
    substituted: int = 0
    build_s: float = 0.0
    read_s: float = 0.0
    read_bytes: int = 0
    written_bytes: int = 0

    @classmethod
    def from_tally(cls, tally: Counter[str]) -> ReuseStats:
        """Return the stats of integer counts, in which times are nanoseconds (``build_ns``)."""
        return cls(
            built=tally["built"],
            reused=tally["reused"],
            stored=tally["stored"],
            damaged=tally["damaged"],
            save_errors=tally["save_errors"],
            substituted=tally["substituted"],
            build_s=tally["build_ns"] / 1e9,
            read_s=tally["read_ns"] / 1e9,
            read_bytes=tally["read_bytes"],
            written_bytes=tally["written_bytes"],
        )
