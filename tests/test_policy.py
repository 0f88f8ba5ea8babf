"""The schedule: key, use_seed and order, against vectors and simulations."""

import copy
import dataclasses
import hashlib
import itertools
import json
import os
import pickle
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reuseloader
from reuseloader.mixing import mix
from reuseloader.permutation import permute
from reuseloader.policy import FOREVER, ReuseKey, ReusePolicy

pytestmark = pytest.mark.filterwarnings("error")

VECTORS = json.loads((Path(__file__).parent / "vectors" / "schedule.json").read_text())
LIBRARY = Path(reuseloader.__file__).parent
SCHEDULE_FIELDS = ["index", "generation", "seed", "epoch", "first_epoch", "last_epoch", "use_index"]
LOSSY_SIZES = [65_537, 262_145, 1_048_577]  # where a well-known shuffle loses a sample
LARGE_SIZES = [2**31 - 1, 2**32 + 1, 2**40 + 3, 2**53 + 1, 2**62 - 1, 2**62]
# Around the sizes at which an implementation may change from a table to a network.
SWITCH_SIZES = [2, 3, 4, 127, 128, 129, 255, 256, 257, 258, 300, 511, 512, 513]


def whole(policy: ReusePolicy, epoch: int, size: int) -> np.ndarray:
    return np.asarray(policy.order(np.arange(size), epoch, size))


def is_bijection(values: np.ndarray) -> bool:
    return bool(np.array_equal(np.sort(values), np.arange(len(values))))


# key


@pytest.mark.parametrize("lifetime", sorted({vector["lifetime"] for vector in VECTORS["key"]}))
def test_key_gives_the_published_vectors(lifetime: int) -> None:
    for vector in [vector for vector in VECTORS["key"] if vector["lifetime"] == lifetime]:
        key = ReusePolicy(lifetime, vector["policy_seed"]).key(vector["index"], vector["epoch"])
        expected = {name: vector[name] for name in [*SCHEDULE_FIELDS, "use_seed"]}
        assert expected == {name: getattr(key, name) for name in expected}
        assert key.is_last_use == (vector["epoch"] == vector["last_epoch"])


def walk(index: int, lifetime: int, num_epochs: int) -> list[dict[str, int]]:
    """Live through the epochs with a counter of uses, as a person with a pencil would."""
    uses, generation, first_epoch = index % lifetime, 0, 0
    records: list[dict[str, int]] = []
    for epoch in range(num_epochs):
        if uses == lifetime:
            uses, generation, first_epoch = 0, generation + 1, epoch
        records.append({"generation": generation, "use_index": uses, "first_epoch": first_epoch})
        uses += 1
    return records


@pytest.mark.parametrize("lifetime", [1, 2, 3, 4, 7, 16])
def test_key_equals_a_walk_through_the_epochs(lifetime: int) -> None:
    policy = ReusePolicy(lifetime, 9)
    for index in [*range(2 * lifetime + 1), 1_000_003]:
        records = walk(index, lifetime, 5 * lifetime + 1)
        last = {record["generation"]: epoch for epoch, record in enumerate(records)}
        for epoch, record in enumerate(records[: 4 * lifetime]):
            key = policy.key(index, epoch)
            assert (key.index, key.epoch) == (index, epoch)
            assert record == {name: getattr(key, name) for name in record}
            assert key.last_epoch == last[record["generation"]]
            assert key.is_last_use is (records[epoch + 1]["generation"] > record["generation"])


@pytest.mark.parametrize("lifetime", [1, 2, 3, 5, 8])
def test_each_generation_serves_lifetime_consecutive_epochs_and_the_first_is_short(
    lifetime: int,
) -> None:
    policy = ReusePolicy(lifetime, 3)
    for index in range(20):
        generations = [policy.key(index, epoch).generation for epoch in range(6 * lifetime)]
        lengths = [generations.count(generation) for generation in range(5)]
        assert lengths == [lifetime - index % lifetime] + [lifetime] * 4
        assert generations == sorted(generations)


@pytest.mark.parametrize("lifetime", [1, 2, 3, 5, 8])
def test_the_spans_of_generations_are_contiguous_and_hold_their_epoch(lifetime: int) -> None:
    policy = ReusePolicy(lifetime, 3)
    for index in range(12):
        expected_first = 0
        for epoch in range(5 * lifetime):
            key = policy.key(index, epoch)
            assert key.first_epoch == expected_first <= epoch <= key.last_epoch
            expected_first = key.last_epoch + 1 if key.is_last_use else expected_first


@pytest.mark.parametrize("lifetime", [1, 2, 3, 5, 8])
def test_from_epoch_1_on_exactly_one_class_is_replaced_and_each_class_in_turn(
    lifetime: int,
) -> None:
    policy, size = ReusePolicy(lifetime, 3), 101
    seeds = [[policy.key(index, epoch).seed for index in range(size)] for epoch in range(20)]
    replaced_classes = []
    for before, after in itertools.pairwise(seeds):
        replaced = [index for index in range(size) if before[index] != after[index]]
        replaced_class = replaced[0] % lifetime
        assert replaced == list(range(replaced_class, size, lifetime))
        replaced_classes.append(replaced_class)
    for start in range(len(replaced_classes) - lifetime):
        assert set(replaced_classes[start : start + lifetime]) == set(range(lifetime))


def test_sample_seeds_are_63_bit_and_distinct_for_every_index_and_generation() -> None:
    keys = [ReusePolicy(3, 5).key(index, epoch) for index in range(60) for epoch in range(60)]
    seed_of = {(key.index, key.generation): key.seed for key in keys}
    assert all(seed_of[key.index, key.generation] == key.seed for key in keys)
    assert len(set(seed_of.values())) == len(seed_of)
    assert all(0 <= seed < 2**63 for seed in seed_of.values())
    assert max(seed_of.values()) >= 2**62


def test_use_seed_is_63_bit_and_distinct_for_every_index_and_epoch() -> None:
    keys = [ReusePolicy(3, 5).key(index, epoch) for index in range(60) for epoch in range(60)]
    use_seeds = {key.use_seed for key in keys}
    assert len(use_seeds) == 3_600
    assert use_seeds.isdisjoint(key.seed for key in keys)
    assert all(0 <= seed < 2**63 for seed in use_seeds)


def test_use_seed_depends_on_the_seed_of_the_policy_and_not_on_its_lifetime() -> None:
    assert ReusePolicy(2, 5).key(7, 9).use_seed == ReusePolicy(6, 5).key(7, 9).use_seed
    assert ReusePolicy(2, 5).key(7, 9).use_seed != ReusePolicy(2, 6).key(7, 9).use_seed


@pytest.mark.parametrize("through", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_copied_or_pickled_key_keeps_everything(through: Callable[[Any], Any]) -> None:
    key = ReusePolicy(4, 2**64 - 3).key(123, 17)
    other = through(key)
    other = pickle.loads(other) if isinstance(other, bytes) else other
    assert other == key
    assert (other.use_seed, other.is_last_use) == (key.use_seed, key.is_last_use)


def test_a_policy_survives_pickling() -> None:
    policy = ReusePolicy(4, -7)
    assert pickle.loads(pickle.dumps(policy)) == policy


def test_key_names_its_fields_in_order() -> None:
    names = [field.name for field in dataclasses.fields(ReuseKey)]
    assert [name for name in names if not name.startswith("_")] == SCHEDULE_FIELDS
    assert [field.name for field in dataclasses.fields(ReusePolicy)][:2] == ["lifetime", "seed"]


def test_policy_and_key_are_frozen() -> None:
    policy = ReusePolicy(2, 1)
    for owner in (policy, policy.key(3, 4)):
        for field in dataclasses.fields(owner):
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(owner, field.name, 0)
        with pytest.raises((AttributeError, TypeError)):
            owner.other = 0  # type: ignore[union-attr]
    assert policy == ReusePolicy(2, 1) and hash(policy) == hash(ReusePolicy(2, 1))
    assert policy.key(3, 4) == ReusePolicy(2, 1).key(3, 4)
    assert policy.key(3, 4) != ReusePolicy(2, 2).key(3, 4)


def test_a_lifetime_without_end_never_ends() -> None:
    policy = ReusePolicy(FOREVER, 1)
    for index in (0, 1, 999, 10**12):
        keys = [policy.key(index, epoch) for epoch in (0, 1, 2, 1_000, 10**12)]
        assert {(key.generation, key.first_epoch, key.seed) for key in keys} == {
            (0, 0, keys[0].seed)
        }
        assert not any(key.is_last_use for key in keys)
        assert len({key.use_seed for key in keys}) == len(keys)


def test_seeds_are_taken_modulo_two_to_the_64() -> None:
    for seed in (-1, 2**65 - 1, np.int64(-1), np.uint64(2**64 - 1)):
        policy = ReusePolicy(2, seed)  # type: ignore[arg-type]
        assert policy == ReusePolicy(2, 2**64 - 1)
        assert policy.key(3, 4) == ReusePolicy(2, -1).key(3, 4)
        assert np.array_equal(whole(policy, 1, 300), whole(ReusePolicy(2, -1), 1, 300))
        assert type(policy.seed) is int


def test_the_default_seed_is_zero() -> None:
    assert ReusePolicy(2) == ReusePolicy(2, 0)


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint64, np.uint8])
def test_numpy_integers_work_as_lifetime_index_and_epoch(kind: type) -> None:
    # 250 + 9 and 250 * anything leave the range of uint8: the arithmetic must be Python's.
    key = ReusePolicy(kind(7), kind(42)).key(kind(250), kind(9))
    assert key == ReusePolicy(7, 42).key(250, 9)
    assert all(type(getattr(key, name)) is int for name in [*SCHEDULE_FIELDS, "use_seed"])
    assert type(key.is_last_use) is bool


@pytest.mark.parametrize("lifetime", [0, -1, 1.5, "3", True, None])
def test_a_lifetime_that_is_no_positive_integer_is_refused(lifetime: Any) -> None:
    with pytest.raises(ValueError) as caught:
        ReusePolicy(lifetime)
    assert_names(caught.value, "lifetime", lifetime)


@pytest.mark.parametrize("seed", ["abc", 1.5, None])
def test_a_seed_that_is_no_integer_is_refused(seed: Any) -> None:
    with pytest.raises(ValueError) as caught:
        ReusePolicy(2, seed)
    assert_names(caught.value, "seed", seed)


@pytest.mark.parametrize("wrong", [-1, 1.5, "3"])
def test_key_and_order_refuse_what_is_no_natural_number(wrong: Any) -> None:
    policy = ReusePolicy(2)
    calls: dict[str, list[Callable[[], Any]]] = {
        "index": [lambda: policy.key(wrong, 0)],
        "epoch": [lambda: policy.key(0, wrong), lambda: policy.order(0, wrong, 10)],
        "size": [lambda: policy.order(0, 0, wrong), lambda: permute(0, wrong, 0)],
    }
    for field, attempts in calls.items():
        for attempt in attempts:
            with pytest.raises(ValueError) as caught:
                attempt()
            assert_names(caught.value, field, wrong)


def assert_names(error: ValueError, field: str, value: Any) -> None:
    text = str(error)
    assert text.startswith(f"{field} must be ") and "\n" not in text
    assert f", but got {field}={value!r}" in text


# order: a bijection that can be asked anywhere


def test_order_is_a_bijection_at_every_size_to_4096() -> None:
    policy = ReusePolicy(2, 11)
    assert [n for n in range(1, 4_097) if not is_bijection(whole(policy, n % 7, n))] == []


def test_order_is_a_bijection_beside_every_power_of_two_and_where_others_lose_samples() -> None:
    sizes = {2**power + step for power in range(21) for step in (-1, 0, 1)} - {0}
    policy = ReusePolicy(3, 12)
    wrong = [n for n in sorted(sizes | {*LOSSY_SIZES}) if not is_bijection(whole(policy, 5, n))]
    assert wrong == []


@pytest.mark.parametrize("size", [1, 2, 7, 97, 3_001])
def test_order_is_a_bijection_for_every_seed_and_epoch(size: int) -> None:
    for seed in (0, 1, 2**63, -1):
        for epoch in (0, 1, 99, 2**31, 2**63, 2**64 - 1):
            assert is_bijection(whole(ReusePolicy(1, seed), epoch, size))


@pytest.mark.parametrize("size", LARGE_SIZES)
def test_order_stays_in_range_and_distinct_at_large_sizes(size: int) -> None:
    spread = np.random.default_rng(size).integers(0, size, 20_000)
    positions = np.unique([*range(3_000), *range(size - 3_000, size), *spread.tolist()])
    order = np.asarray(ReusePolicy(2, 4).order(positions, 3, size))
    assert order.min() >= 0 and order.max() < size
    assert len(np.unique(order)) == len(positions)
    # Sixteen equal parts of the range and sixteen last digits are hit alike (df 15, p < 1e-6).
    for cells in (order // (size // 16 + 1), order % 16):
        expected = len(order) / 16
        assert ((np.bincount(cells, minlength=16) - expected) ** 2 / expected).sum() < 60


@pytest.mark.parametrize("size", [1, 2, 5, 64, *SWITCH_SIZES, 1_000, *LOSSY_SIZES, *LARGE_SIZES])
def test_one_position_equals_the_same_position_of_an_array(size: int) -> None:
    policy = ReusePolicy(2, 6)
    positions = sorted({position % size for position in (0, 1, 2, 77, 5**9, size // 2, -2, -1)})
    expected = [policy.order(position, 9, size) for position in positions]
    assert [type(index) for index in expected] == [int] * len(positions)
    assert np.asarray(policy.order(np.array(positions), 9, size)).tolist() == expected


@pytest.mark.parametrize("size", [5, 64, 255, 257, 1_000, 60_000])
def test_any_split_into_blocks_gives_the_same_order(size: int) -> None:
    policy = ReusePolicy(2, 6)
    expected = whole(policy, 4, size)
    generator = np.random.default_rng(size)
    for num_cuts in (1, 7, 40):
        cuts = np.sort(generator.integers(0, size + 1, num_cuts))
        blocks = [policy.order(block, 4, size) for block in np.split(np.arange(size), cuts)]
        assert np.array_equal(np.concatenate(blocks), expected)
    mixed = generator.permutation(size)
    assert np.array_equal(policy.order(mixed, 4, size), expected[mixed])
    twice = np.array([size - 1, 0, size - 1])
    assert np.array_equal(policy.order(twice, 4, size), expected[twice])


@pytest.mark.parametrize("size", [24, 300, 5_000])
@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1,), (24,), (4, 6), (2, 3, 4)])
def test_an_array_keeps_its_shape_and_comes_back_as_int64(
    shape: tuple[int, ...], size: int
) -> None:
    positions = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    order = ReusePolicy(2, 6).order(positions, 4, size)
    assert isinstance(order, np.ndarray)
    assert (order.shape, order.dtype) == (shape, np.dtype(np.int64))
    assert np.array_equal(order, whole(ReusePolicy(2, 6), 4, size)[positions])


@pytest.mark.parametrize("size", [100, 300, 60_000])
@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", ">i4", ">u8"])
def test_every_integer_type_gives_the_same_order(dtype: str, size: int) -> None:
    order = ReusePolicy(2, 6).order(np.arange(100).astype(dtype), 4, size)
    assert np.asarray(order).dtype == np.dtype(np.int64)
    assert np.array_equal(order, whole(ReusePolicy(2, 6), 4, size)[:100])


@pytest.mark.parametrize("size", [100, 60_000])
def test_a_strided_or_read_only_array_is_read_and_left_as_it_was(size: int) -> None:
    expected = whole(ReusePolicy(2, 6), 4, size)
    positions = np.arange(100)
    positions.flags.writeable = False
    for view in (positions, positions[::-3], positions.reshape(10, 10).T):
        assert np.array_equal(ReusePolicy(2, 6).order(view, 4, size), expected[view])
    assert np.array_equal(positions, np.arange(100))


@pytest.mark.parametrize("size", [100, 60_000])
def test_changing_a_returned_order_changes_no_later_one(size: int) -> None:
    policy = ReusePolicy(2, 6)
    first = whole(policy, 4, size)
    expected = first.copy()
    first[:] = 0
    assert np.array_equal(whole(policy, 4, size), expected)


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint64, np.uint8])
def test_a_numpy_integer_is_a_position_like_any_other(kind: type) -> None:
    order = ReusePolicy(2, 6).order(kind(99), kind(4), kind(250))
    assert type(order) is int
    assert order == ReusePolicy(2, 6).order(99, 4, 250)


@pytest.mark.parametrize("size", [1, 100, 60_000, 2**62])
def test_a_position_outside_is_an_index_error_alone_and_in_an_array(size: int) -> None:
    policy = ReusePolicy(2)
    for position in (-1, size, size + 1, -(2**63), 2**63 - 1):
        for asked in (position, np.array(position), np.array([0, position])):
            with pytest.raises(IndexError):
                policy.order(asked, 0, size)
    for position in (2**63, 2**64 - 1):
        for asked in (position, np.array([0, position], np.uint64)):
            with pytest.raises(IndexError):
                policy.order(asked, 0, size)
    for position in (2**64, 2**70, -(2**70)):
        with pytest.raises(IndexError):
            policy.order(position, 0, size)


@pytest.mark.parametrize("size", [100, 60_000])
@pytest.mark.parametrize("wrong", [1.0, "1", None, np.arange(3.0), np.array(["1"]), np.empty(0)])
def test_a_position_that_is_no_integer_is_refused(wrong: Any, size: int) -> None:
    with pytest.raises(ValueError) as caught:
        ReusePolicy(2).order(wrong, 0, size)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("size", [1, 7, 64, 257, 1_000, 2**40])
def test_order_is_permute_keyed_by_seed_and_epoch(size: int) -> None:
    positions = np.arange(min(size, 2_000))
    for seed, epoch in [(0, 0), (5, 3), (2**64 - 1, 10**6)]:
        expected = permute(positions, size, mix(seed, 2, epoch))
        assert np.array_equal(ReusePolicy(4, seed).order(positions, epoch, size), expected)
        assert permute(0, size, mix(seed, 2, epoch)) == np.asarray(expected)[0]


@pytest.mark.parametrize("size", [64, 257, 1_000])
def test_every_seed_and_epoch_has_an_order_of_its_own(size: int) -> None:
    orders = {whole(ReusePolicy(2, s), e, size).tobytes() for s in range(20) for e in range(20)}
    assert len(orders) == 400


def test_order_does_not_depend_on_the_lifetime() -> None:
    for size in (64, 1_000):
        assert np.array_equal(whole(ReusePolicy(1, 3), 2, size), whole(ReusePolicy(9, 3), 2, size))


@pytest.mark.parametrize("size", [10**9, 2**62])
def test_one_position_of_a_huge_epoch_needs_no_table(size: int) -> None:
    policy = ReusePolicy(2)
    tracemalloc.start()
    try:
        index = policy.order(0, 3, size)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0 <= index < size
    assert peak_bytes < 200_000


def test_asking_many_epochs_and_sizes_leaves_little_memory_behind() -> None:
    policy = ReusePolicy(2)
    tracemalloc.start()
    try:
        for epoch in range(1_500):
            policy.order(np.arange(10), epoch, 64 + epoch)
            policy.order(np.arange(10), epoch, 64)
        left_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert left_bytes < 1_000_000


# everywhere and always the same


def test_the_pinned_orders_never_change() -> None:
    assert whole(ReusePolicy(2, 42), 0, 10).tolist() == [9, 6, 3, 2, 8, 5, 1, 4, 7, 0]
    assert whole(ReusePolicy(2, 42), 1, 10).tolist() == [8, 2, 3, 6, 5, 4, 7, 1, 0, 9]
    start = whole(ReusePolicy(4, -1), 7, 1_200)[:8].tolist()
    assert start == [261, 481, 551, 146, 1090, 1102, 954, 240]
    state = hashlib.sha256()
    for size in [*range(1, 600), 4_096, 60_000]:
        state.update(whole(ReusePolicy(1, 5), 3, size).astype("<i8").tobytes())
    assert state.hexdigest()[:32] == "d6167d05b66d37ae6f8d91af3d86cf1b"


def digest() -> str:
    """One number over keys and orders of small and large sizes."""
    policy = ReusePolicy(3, -5)
    keys = [policy.key(index, epoch) for index in range(40) for epoch in range(7)]
    text = repr([[getattr(key, name) for name in [*SCHEDULE_FIELDS, "use_seed"]] for key in keys])
    state = hashlib.sha256(text.encode())
    for size in (5, 64, 257, 1_000, 60_000, 2**40):
        state.update(np.asarray(policy.order(np.arange(min(size, 999)), 8, size)).tobytes())
    return state.hexdigest()


ALONE = """
import sys, types
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in sys.stdlib_module_names | {"numpy", "reuseloader"}:
            raise ImportError(f"the policy must not import {name}")
sys.meta_path.insert(0, Refuse())
package = sys.modules["reuseloader"] = types.ModuleType("reuseloader")  # which imports the rest
package.__path__ = [sys.argv[1]]
from reuseloader.policy import ReusePolicy
assert "torch" not in sys.modules
policy = ReusePolicy(2, 42)
print(policy.key(356, 3).seed, policy.order(5, 1, 1000))
"""


def run_python(*arguments: str, hash_seed: str = "random") -> str:
    path = os.pathsep.join([str(LIBRARY.parent), str(Path(__file__).parent)])
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": path}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_policy_needs_nothing_but_numpy_and_the_standard_library() -> None:
    policy = ReusePolicy(2, 42)
    printed = run_python("-c", ALONE, str(LIBRARY))
    assert printed == f"{policy.key(356, 3).seed} {policy.order(5, 1, 1000)}"


@pytest.mark.parametrize("hash_seed", ["0", "12345"])
def test_another_process_computes_the_same(hash_seed: str) -> None:
    command = "import test_policy; print(test_policy.digest())"
    assert run_python("-c", command, hash_seed=hash_seed) == digest()


def test_the_global_generators_are_neither_read_nor_moved() -> None:
    import random

    before = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]
    expected = digest()
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before  # type: ignore[index]
    random.seed(1)
    np.random.seed(1)
    try:
        assert digest() == expected
    finally:
        random.setstate(before[0])
