from __future__ import annotations

from processes import RankGroup

from training.agreement import Agreement
from training.distributed import ranks


def agree(asked: list[list[int | None]]) -> list[int | None]:
    agreement = Agreement()
    return [agreement(value) for value in asked[ranks().rank]]


def test_all_ranks_learn_of_a_signal_at_the_same_step(rank_group: RankGroup) -> None:
    asked = [[None, None, None, None, None], [None, 15, 15, None, None]]
    assert rank_group.of(2).call(agree, asked) == [[None, None, 15, 15, None]] * 2


def test_of_two_signals_one_is_agreed_on(rank_group: RankGroup) -> None:
    assert rank_group.of(2).call(agree, [[15, None], [10, None]]) == [[None, 15]] * 2
