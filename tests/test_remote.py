"""Records of a store in local slots: which ones, how many at once, and never a part of one."""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pictures import encoded, picture
from runs import train
from servers import FAULTS, Server, serving

from reuseloader import ReuseDataLoader, ReusePolicy, SlotRecords, load_tensors
from training.build import build_image, compose
from training.checks import ConfigError
from training.curriculum import Steps
from training.data.images import UnreadableError, decode
from training.data.remote import Remote

pytest.importorskip("fsspec")
pytest.importorskip("aiohttp")

NUM_RECORDS = 30
PLAIN: Any = Steps({0: compose([])})


def array_file(array: np.ndarray[Any, Any]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def record(number: int) -> np.ndarray[Any, Any]:
    """Return an array that no other record equals."""
    return np.random.default_rng(number).integers(0, 256, (3, 6, 5), dtype=np.uint8)


def write_index(files: dict[str, bytes], split: str, labels: list[Any], digests: bool) -> None:
    lines = ["path,num_bytes,label,sha256" if digests else "path,num_bytes,label"]
    for number, label in enumerate(labels):
        name = f"{split}/{number:03d}.npy"
        row = [name, len(files[name]), label]
        lines.append(",".join(map(str, [*row, hashlib.sha256(files[name]).hexdigest()][:4])))
        if not digests:
            lines[-1] = ",".join(map(str, row))
    files[f"{split}.csv"] = "\n".join([*lines, ""]).encode()


def contents(digests: bool = False, num_val: int = 6) -> dict[str, bytes]:
    """Return a store of 30 records for training, and some for validation, of three classes."""
    files = {f"train/{n:03d}.npy": array_file(record(n)) for n in range(NUM_RECORDS)}
    files |= {f"val/{n:03d}.npy": array_file(record(1000 + n)) for n in range(num_val)}
    write_index(files, "train", [n % 3 for n in range(NUM_RECORDS)], digests)
    write_index(files, "val", [n % 3 for n in range(num_val)], digests)
    return files


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as running:
        running.files = contents()
        yield running


def remote(server: Server, split: str = "train", **options: Any) -> Remote:
    options = {"timeout_s": 0.5, "num_attempts": 3, "pause_s": 0.01, **options}
    return Remote(server.url, split, **options)


class Build:
    """A build of whole records that workers can import."""

    def __init__(self, source: Remote) -> None:
        self.source = source

    def __call__(self, key: Any) -> Any:
        return build_image(key, source=self.source, transforms=PLAIN)


def loader_of(source: Remote, folder: Path, **options: Any) -> ReuseDataLoader:
    defaults = {"lifetime": 3, "seed": 5, "shuffle": True, "batch_size": 4}
    return ReuseDataLoader(
        Build(source),
        source.size_table or len(source),  # type: ignore[arg-type]
        folder,
        prefetch=source.prefetch,
        **{**defaults, **options},
    )


def test_every_record_is_what_lies_in_the_store(server: Server) -> None:
    source = remote(server)
    assert (len(source), source.classes) == (NUM_RECORDS, ["0", "1", "2"])
    for number in (0, 17, 29):
        item = source[number]
        assert item["image"].tolist() == record(number).tolist()
        assert (type(item["label"]), item["label"]) == (int, number % 3)
    with pytest.raises(IndexError):
        source[NUM_RECORDS]


def test_images_and_arrays_of_any_layout_may_be_mixed(server: Server) -> None:
    grey = record(1)[0]
    jpeg = encoded(picture(size=(5, 6)), "JPEG")
    server.files |= {
        "train/000.npy": array_file(grey),
        "train/001.npy": array_file(record(2).transpose(1, 2, 0)),
        "train/x.JPG": jpeg,
    }
    write_index(server.files, "train", [0, 1], digests=False)
    server.files["train.csv"] += f"train/x.JPG,{len(jpeg)},2\n".encode()
    source = remote(server)
    assert source[0]["image"].tolist() == np.stack([grey] * 3).tolist()
    assert source[1]["image"].tolist() == record(2).tolist()
    assert torch.equal(source[2]["image"], decode(jpeg))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_slot_holds_the_record_of_its_generation(
    num_workers: int, server: Server, tmp_path: Path
) -> None:
    source = remote(server, size=10, lifetime=3, seed=5)
    policy = ReusePolicy(3, 5)
    slots = SlotRecords(10, NUM_RECORDS, lifetime=3, seed=5)
    loader = loader_of(source, tmp_path, num_workers=num_workers)
    server.asked.clear()
    used = set()
    for epoch in range(7):
        keys = [policy.key(policy.order(place, epoch, 10), epoch) for place in range(10)]
        used |= {(key.index, key.generation) for key in keys}
        expected = [record(slots.record(key.index, key.generation)) for key in keys]
        found = torch.cat([batch["image"] for batch in loader])
        assert found.tolist() == np.stack(expected).tolist()
    wanted = Counter(f"train/{slots.record(*use):03d}.npy" for use in used)
    assert server.asked == wanted


def test_every_record_is_fetched_once_before_any_is_fetched_twice(
    server: Server, tmp_path: Path
) -> None:
    source = remote(server, size=6, lifetime=2, seed=1)
    loader = loader_of(source, tmp_path, lifetime=2, seed=1)
    server.asked.clear()
    counts: Counter[int] = Counter()
    for _ in range(20):
        list(loader)
        counts = Counter({n: server.asked[f"train/{n:03d}.npy"] for n in range(NUM_RECORDS)})
        turn = counts.total() // NUM_RECORDS
        assert sum(max(0, turn - count) for count in counts.values()) <= 6
        assert sum(max(0, count - turn - 1) for count in counts.values()) <= 6
    assert counts.total() == 6 + 3 * 19  # all at first, then half of the slots in each epoch
    assert loader.stats().reused == 3


def test_records_of_a_batch_are_fetched_at_once_and_each_once(
    server: Server, tmp_path: Path
) -> None:
    source = remote(server, num_fetches=4)
    loader = loader_of(source, tmp_path, batch_size=10)
    server.asked.clear()
    server.latency_s, server.most_at_once = 0.03, 0
    list(loader)
    assert server.most_at_once == 4
    assert server.asked == {f"train/{n:03d}.npy": 1 for n in range(NUM_RECORDS)}


def test_without_a_number_of_slots_every_record_is_kept(server: Server, tmp_path: Path) -> None:
    source = remote(server, "val")
    loader = loader_of(source, tmp_path, shuffle=False)
    for _ in range(2):
        found = torch.cat([batch["image"] for batch in loader])
        assert found.tolist() == [record(1000 + n).tolist() for n in range(6)]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_network_that_fails_at_times_changes_nothing(
    fault: str, server: Server, tmp_path: Path
) -> None:
    source = remote(server, timeout_s=0.15, num_attempts=4)
    for number in range(0, NUM_RECORDS, 7):
        server.faults[f"train/{number:03d}.npy"] = [fault, fault]
    loader = loader_of(source, tmp_path, shuffle=False)
    found = torch.cat([batch["image"] for batch in loader])
    assert found.tolist() == [record(n).tolist() for n in range(NUM_RECORDS)]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_record_that_cannot_be_had_is_named_and_no_part_of_it_stored(
    fault: str, server: Server, tmp_path: Path
) -> None:
    source = remote(server, timeout_s=0.1)
    server.faults["train/009.npy"] = [fault] * 99
    loader = loader_of(source, tmp_path, shuffle=False, load=load_tensors, save=save_checked)
    place = re.escape(f"record 9, {server.url}/train/009.npy cannot be read, tried 3 times: ")
    with pytest.raises(UnreadableError, match=f"^{place}.* of index=9, epoch=0, generation=0"):
        list(loader)
    stored = sorted(int(path.stem) for path in tmp_path.glob("*.pt"))
    assert 9 not in stored
    assert [n for n in stored if n < 8] == [n for n in range(8) if n % 3 != 2]


def save_checked(obj: Any, path: Path) -> None:
    """Store a sample as the template does, after a look at whether it is whole."""
    from reuseloader import save_tensors

    assert obj["sample"]["image"].shape == (3, 6, 5)
    save_tensors(obj, path)


def test_a_record_that_is_skipped_is_counted_and_tried_again(
    server: Server, tmp_path: Path
) -> None:
    source = remote(server, on_error="skip", num_attempts=1)
    server.faults["train/009.npy"] = ["500"] * 2
    loader = loader_of(source, tmp_path, lifetime=9, shuffle=False)
    for expected in (record(10), record(10), record(9)):
        if (expected == record(10)).all():
            with pytest.warns(UserWarning, match=r"^record 9, .* tried once: .*\(index=9, epoch="):
                found = torch.cat([batch["image"] for batch in loader])
            assert loader.stats().substituted == 1
        else:
            found = torch.cat([batch["image"] for batch in loader])
            assert loader.stats().substituted == 0
        assert found[9].tolist() == expected.tolist()


def test_a_record_that_was_removed_is_named(server: Server) -> None:
    source = remote(server)
    del server.files["train/004.npy"]
    with pytest.raises(UnreadableError, match=r"record 4, .*/train/004.npy, is not there any more"):
        source[4]


def test_a_record_that_holds_no_image_is_named(server: Server) -> None:
    pickled = io.BytesIO()
    np.save(pickled, np.array([{}], dtype=object), allow_pickle=True)
    bad = {0: b"no array", 1: pickled.getvalue(), 2: array_file(np.zeros(3, np.int64))}
    for number, data in bad.items():
        server.files[f"train/{number:03d}.npy"] = data
    write_index(server.files, "train", [0, 1, 2], digests=False)
    source = remote(server)
    for number in bad:
        with pytest.raises(UnreadableError, match=rf"^record {number}, .*/00{number}\.npy: .*a"):
            source[number]


def test_other_content_of_the_same_length_is_noticed_where_the_index_has_a_digest(
    server: Server,
) -> None:
    server.files = contents(digests=True)
    source = remote(server)
    assert source[3]["image"].tolist() == record(3).tolist()
    server.files["train/003.npy"] = server.files["train/004.npy"]
    with pytest.raises(UnreadableError, match="its SHA-256 is another one"):
        source[3]


def test_the_identity_is_the_content_and_not_the_place(server: Server) -> None:
    before = remote(server).identity()
    with serving() as other:
        other.files = contents()
        assert remote(other, timeout_s=5.0, num_fetches=2).identity() == before
    marks = {before, remote(server, "val").identity()}
    server.files["train/000.npy"] = array_file(record(77))  # one that is sampled
    marks.add(remote(server).identity())
    write_index(server.files, "train", [1, *(n % 3 for n in range(1, 30))], digests=False)
    marks.add(remote(server).identity())
    write_index(server.files, "train", [n % 3 for n in range(29)], digests=False)
    marks.add(remote(server).identity())
    write_index(server.files, "train", [n % 3 for n in range(29)], digests=True)
    marks.add(remote(server).identity())
    assert len(marks) == 6


def test_a_pickled_copy_is_equal(server: Server) -> None:
    source = remote(server, size=4, lifetime=2)
    source.prefetch([ReusePolicy(2).key(0, 0)])
    copy = pickle.loads(pickle.dumps(source))
    key = ReusePolicy(2).key(3, 5)
    assert (copy.record_of(key), len(copy)) == (source.record_of(key), NUM_RECORDS)
    assert torch.equal(copy[2]["image"], source[2]["image"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("path,label\n", "train.csv must have a column num_bytes in its first line"),
        ("path,num_bytes,label\na.npy,3\n", "train.csv, line 2: must have a path, a length in"),
        ("path,num_bytes,label\na.npy,-3,1\n", "train.csv, line 2: must have a path, a length in"),
        ("path,num_bytes,label\na.npy,9" + "9" * 5000 + ",1\n", "line 2: must have a path, a le"),
        ("path,num_bytes,label\na.npy," + "9" * 19 + ",1\n", "line 2: must have a path, a length"),
        ("path,num_bytes,label,sha256\na.npy,3,1,ab\nb.npy,3,1\n", "line 3: must have as many fie"),
        ("path,num_bytes,label\na.npy,3,1,2\n", "line 2: must have as many fields as the first"),
        ("path,num_bytes,label\na.npy,3," + "x" * 200_000, "train.csv, line 2: field larger than"),
        ("path,num_bytes,label\na.npy,3,1\n\udcff.npy,3,1\n", "train.csv, line 3: must be UTF-8"),
        ("path,num_bytes,label\na.txt,3,1\n", "line 2: a.txt must be an image or end in .npy"),
        ("path,num_bytes,label\n", "must hold the file train.csv, or records below train/CLASS/"),
    ],
)
def test_an_index_that_is_not_as_it_has_to_be_is_named(
    text: str, said: str, server: Server
) -> None:
    server.files["train.csv"] = text.encode(errors="surrogateescape")
    with pytest.raises(ConfigError) as caught:
        remote(server)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_web_server_without_an_index_is_told_what_it_needs(server: Server) -> None:
    del server.files["train.csv"]
    said = f"{server.url} is a web server, which cannot be listed: train.csv and val.csv must lie "
    with pytest.raises(ConfigError, match=f"^{re.escape(said)}there, but train.csv does not$"):
        remote(server)


def test_where_records_are_skipped_the_identity_does_without_those_that_are_gone(
    server: Server,
) -> None:
    whole = remote(server, on_error="skip").identity()
    assert whole == remote(server).identity()
    del server.files["train/000.npy"]
    assert len({whole, *(remote(server, on_error="skip").identity() for _ in range(2))}) == 2
    with pytest.raises(UnreadableError, match="record 0, "):
        remote(server).identity()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"split": "test"}, "split must be train or val, but got split=test"),
        ({"timeout_s": 0}, "timeout_s must be a positive number, at most a million, but got time"),
        ({"timeout_s": 1e7}, "timeout_s must be a positive number, at most a million, but got ti"),
        ({"num_attempts": 0}, "num_attempts must be a positive integer"),
        ({"num_fetches": 0}, "num_fetches must be a positive integer"),
        ({"on_error": "no"}, "on_error must be raise or skip"),
        ({"url": ""}, "url must be the folder of a store, like s3://bucket/folder, but got url=''"),
        ({"size": 31}, "size must be at most the number of records, 30, but got size=31"),
    ],
)
def test_a_wrong_argument_is_named(options: dict[str, Any], said: str, server: Server) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        Remote(**{"url": server.url, "split": "train", **options})
    assert str(caught.value).startswith(said)


def test_a_class_of_validation_alone_is_refused(server: Server) -> None:
    write_index(server.files, "val", [0, 1, 2, 3], digests=False)
    with pytest.raises(ValueError, match="3 must be a class of training as well, but is none"):
        remote(server, "val")


def test_names_of_classes_may_be_words_and_numbers_come_in_their_order(server: Server) -> None:
    write_index(server.files, "train", ["owl", "ant", "owl"], digests=False)
    assert remote(server).classes == ["ant", "owl"]
    assert remote(server).labels.tolist() == [1, 0, 1]
    write_index(server.files, "train", [10, 9, 2], digests=False)
    assert remote(server).classes == ["2", "9", "10"]


def folder(root: Path) -> Path:
    """Put records into class folders, as a store has them that can be listed."""
    for split, count in {"train": 12, "val": 4}.items():
        for number in range(count):
            path = root / split / ("cat" if number % 2 else "dog") / f"{number}.npy"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(array_file(record(number)))
    (root / "train" / ".hidden").mkdir()
    (root / "train" / ".hidden" / "1.npy").write_bytes(b"")
    (root / "train" / "cat" / "notes.txt").write_text("no record")
    return root


def test_a_store_that_can_be_listed_needs_no_index(tmp_path: Path) -> None:
    source = Remote(f"file://{folder(tmp_path)}", "train")
    assert (len(source), source.classes) == (12, ["cat", "dog"])
    expected = [n for n in range(12) if n % 2] + [n for n in range(12) if n % 2 == 0]
    names = sorted(range(12), key=lambda n: ("cat" if n % 2 else "dog", f"{n}.npy"))
    assert sorted(expected) == sorted(names)
    for place, number in enumerate(names):
        assert source[place]["image"].tolist() == record(number).tolist()
        assert source[place]["label"] == (0 if number % 2 else 1)


def run_options(url: str, *more: str) -> tuple[str, ...]:
    return (
        *("data=remote", f"data.url={url}", "data.num_classes=3", "data.image_size=16"),
        *("augment=photos", "lifetime=2", *more),
    )


def test_a_run_trains_on_it(server: Server, tmp_path: Path) -> None:
    table = train(tmp_path / "run", *run_options(server.url, "data.size=20", "epochs=3"))
    assert [(row["built"], row["reused"]) for row in table] == [(20, 0), (10, 10), (10, 10)]
    plain = train(tmp_path / "again", *run_options(server.url, "data.size=20", "epochs=3"))
    assert [row["train_loss"] for row in plain] == [row["train_loss"] for row in table]
    marks = json.loads((tmp_path / "run" / "inputs.json").read_text())
    assert marks["data.train"] != marks["data.val"]


def test_a_store_that_is_not_there_ends_the_run_in_a_line(tmp_path: Path) -> None:
    with serving() as gone:
        url = gone.url
    quick = ("data.train.num_attempts=1",)
    with pytest.raises(ConfigError, match=f"^data.train: .*{url}/train.csv cannot be read, tried"):
        train(tmp_path / "run", *run_options(url, *quick))
