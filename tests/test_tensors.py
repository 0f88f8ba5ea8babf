import inspect
import json
import math
import os
import struct
import subprocess
import sys
import warnings
import zlib
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torchvision import tv_tensors

from reuseloader import ReuseDataset, ReusePolicy, load_tensors, save_tensors
from reuseloader.blocks import DTYPES
from reuseloader.checksum import CHECKSUMS
from reuseloader.store import STALE, DamagedFileError, Identity, UnstorableSampleError
from reuseloader.tensors import HEAD, Head, read_tensors

IDENTITY = Identity(generation=3, seed=2**62 + 1, lifetime=4, fingerprint="v1 \u00e4")
Pair = namedtuple("Pair", "a b")


@dataclass
class Record:
    x: int


def same(a, b, place="sample"):
    """Assert equal types, values, dtypes, shapes, strides and bits."""
    assert type(a) is type(b), place
    if isinstance(a, dict):
        assert list(a) == list(b), place
        assert [type(key) for key in a] == [type(key) for key in b], place
        for key in a:
            same(a[key], b[key], f"{place}[{key!r}]")
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b), place
        for number, pair in enumerate(zip(a, b, strict=True)):
            same(*pair, f"{place}[{number}]")
    elif isinstance(a, torch.Tensor):
        about = (a.dtype, a.shape, a.stride(), a.device, a.layout, a.requires_grad)
        assert about == (b.dtype, b.shape, b.stride(), b.device, b.layout, b.requires_grad), place
        assert bits(a) == bits(b), place
        names = ("format", "canvas_size", "clamping_mode")
        fields = {name: getattr(a, name, None) for name in names}
        assert fields == {name: getattr(b, name, None) for name in names}, place
    elif isinstance(a, np.ndarray):
        about = (a.dtype, a.shape, a.flags.c_contiguous, a.flags.f_contiguous, a.flags.writeable)
        other = (b.dtype, b.shape, b.flags.c_contiguous, b.flags.f_contiguous, b.flags.writeable)
        assert about == other, place
        assert a.tobytes() == b.tobytes(), place
    elif isinstance(a, np.generic):
        assert (a.dtype, a.tobytes()) == (b.dtype, b.tobytes()), place
    else:
        assert a == b or (a != a and b != b), place


def bits(tensor):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # complex32 is experimental
        plain = tensor.as_subclass(torch.Tensor).resolve_conj().contiguous()
        return bytes(plain.flatten().view(torch.uint8).numpy()) if plain.numel() else b""


def of_dtype(dtype, shape=(3, 5)):
    raw = torch.arange(math.prod(shape) * dtype.itemsize).remainder(
        2 if dtype is torch.bool else 97
    )
    return raw.to(torch.uint8).view(dtype).reshape(shape)


# torchvision's boxes have that only from 0.24 on.
KNOWS_CLAMPING = "clamping_mode" in inspect.signature(tv_tensors.BoundingBoxes.__new__).parameters
CLAMPING = {"clamping_mode": "hard"} if KNOWS_CLAMPING else {}

SAMPLES = {
    "scalars": {"int": 7, "min": -(2**63), "float": 0.1, "inf": -math.inf, "nan": math.nan,
                "zero": -0.0, "true": True, "false": False, "none": None,
                "text": "na\u00efve \ud800",
                "empty": "", "bytes": b"\x00\xff", "long": 2**63, "longer": -(10**40)},
    "containers": [(), [], {}, (1, [2, {"a": (None,)}]), {2: "i", None: 1, True: 0, 1.5: 1}],
    "tensors": {"zero_d": torch.tensor(1.5), "empty": torch.empty(0, 3), "row": torch.arange(7),
                "one": torch.ones(1, 1), "bool": torch.tensor([True, False])},
    "layouts": {"channels_last": torch.randn(4, 5, 3).permute(2, 0, 1),
                "transposed": torch.randn(4, 5).t(), "5d": torch.randn(1, 2, 3, 4, 5),
                "channels_last_4d": torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
                "size_one": torch.randn(3, 1, 1).permute(2, 0, 1).permute(1, 2, 0),
                "conj": torch.randn(3, dtype=torch.complex64).conj()},
    "arrays": {"c": np.arange(6).reshape(2, 3), "f": np.arange(6.0).reshape(2, 3, order="F"),
               "hwc": np.arange(24, dtype=np.uint8).reshape(2, 3, 4).transpose(2, 0, 1),
               "zero_d": np.array(3.5), "empty": np.empty((0, 2)), "big": np.array([1, 2], ">i4"),
               "texts": np.array(["a", "bcd"]), "bytes": np.array([b"a", b"bc"]),
               "times": np.array(["2020-01-01"], "M8[D]"), "bool": np.array([True]),
               "half": np.array([1.5], np.float16), "complex": np.array([1j])},
    "numpy scalars": [np.int64(3), np.uint8(200), np.float32(0.1), np.bool_(True), np.complex64(1j),
                      np.datetime64("2020-01-01"), np.float16(2)],
    "torchvision": {"image": tv_tensors.Image(torch.randint(0, 255, (3, 4, 5), dtype=torch.uint8)),
                    "mask": tv_tensors.Mask(torch.ones(4, 5, dtype=torch.bool)),
                    "video": tv_tensors.Video(torch.zeros(2, 3, 4, 5)),
                    "boxes": tv_tensors.BoundingBoxes(torch.ones(2, 4), format="CXCYWH",
                                                      canvas_size=(4, 5), **CLAMPING),
                    "no boxes": tv_tensors.BoundingBoxes(torch.ones(0, 4), format="XYXY",
                                                         canvas_size=(4, 5))},
    "an image and its label": {"image": torch.arange(243, dtype=torch.uint8).view(3, 9, 9), "y": 3},
    "a tensor alone": torch.arange(5, dtype=torch.int16),
}  # fmt: skip


@pytest.mark.parametrize("name", SAMPLES)
def test_what_was_saved_comes_back(name, tmp_path):
    save_tensors(IDENTITY.envelope(SAMPLES[name]), tmp_path / "file")

    same(IDENTITY.envelope(SAMPLES[name]), load_tensors(tmp_path / "file"))
    same(SAMPLES[name], read_tensors(tmp_path / "file", IDENTITY))


@pytest.mark.parametrize("name", SAMPLES)
def test_any_object_may_be_saved(name, tmp_path):
    save_tensors(SAMPLES[name], tmp_path / "file")
    same(SAMPLES[name], load_tensors(tmp_path / "file"))


@pytest.mark.parametrize("name", sorted(DTYPES))
@pytest.mark.filterwarnings("ignore:.*support is experimental")
def test_every_dtype_of_torch_comes_back(name, tmp_path):
    dtype = DTYPES[name]
    sample = [of_dtype(dtype), of_dtype(dtype, (0, 2)), of_dtype(dtype, ())]
    save_tensors(sample, tmp_path / "file")
    same(sample, load_tensors(tmp_path / "file"))


def test_a_slice_stores_no_more_than_itself(tmp_path):
    save_tensors(torch.randn(1000, 1000)[3], tmp_path / "file")
    assert (tmp_path / "file").stat().st_size < 4400
    loaded = load_tensors(tmp_path / "file")
    assert loaded.untyped_storage().nbytes() == 4000


def test_a_tensor_that_occurs_twice_is_stored_once_and_comes_back_as_one(tmp_path):
    tensor, array = torch.zeros(1000), np.zeros(1000)
    save_tensors({"a": tensor, "b": [tensor, array], "c": array}, tmp_path / "file")
    loaded = load_tensors(tmp_path / "file")
    assert loaded["a"] is loaded["b"][0]
    assert loaded["c"] is loaded["b"][1]
    assert (tmp_path / "file").stat().st_size < 12400


def test_blocks_begin_at_multiples_of_64_bytes(tmp_path):
    save_tensors([torch.ones(3, dtype=torch.uint8), torch.arange(5), "text"], tmp_path / "file")
    assert all(t.data_ptr() % 64 == 0 for t in load_tensors(tmp_path / "file")[:2])


def test_changing_what_was_read_changes_no_later_read(tmp_path):
    save_tensors({"x": torch.zeros(4), "y": np.zeros(4)}, tmp_path / "file")
    first = load_tensors(tmp_path / "file")
    first["x"] += 1
    first["y"] += 1
    assert load_tensors(tmp_path / "file")["x"].sum() == 0
    assert load_tensors(tmp_path / "file")["y"].sum() == 0


@pytest.mark.parametrize(
    ("part", "type_name"),
    [
        (Record(1), "Record"),
        (Pair(1, 2), "Pair"),
        (OrderedDict(a=1), "collections.OrderedDict"),
        ({1}, "set"),
        (1j, "complex"),
        (np.array([object()]), "dtype=object"),
        (np.zeros(2, dtype=[("a", "i4")]), "numpy.ndarray"),
        (np.str_("a"), "numpy.str_"),
        (np.ma.array([1]), "MaskedArray"),
        (torch.zeros(3).to_sparse(), "torch.sparse_coo"),
        (torch.zeros(3, device="meta"), "meta"),
        (torch.nn.Parameter(torch.zeros(3), requires_grad=False), "Parameter"),
        (torch.zeros(3, requires_grad=True), "requires grad"),
        (lambda: None, "function"),
    ],
)
def test_what_it_cannot_hold_is_refused_by_type_and_place(part, type_name, tmp_path):
    with pytest.raises(UnstorableSampleError) as error:
        save_tensors(IDENTITY.envelope({"a": [0, part]}), tmp_path / "file")
    assert "sample['a'][1]" in str(error.value)
    assert type_name in str(error.value)
    assert not (tmp_path / "file").exists()


def test_a_key_that_it_cannot_hold_is_refused(tmp_path):
    with pytest.raises(UnstorableSampleError, match=r"key \(1, 2\) of sample\['a'\], a tuple"):
        save_tensors({"a": {(1, 2): 3}}, tmp_path / "file")


def test_a_sample_that_holds_itself_is_refused(tmp_path):
    sample = []
    sample.append(sample)
    with pytest.raises(UnstorableSampleError, match="nested deeper than 64"):
        save_tensors(sample, tmp_path / "file")


def test_the_dataset_names_the_index_of_a_sample_that_it_cannot_store(tmp_path):
    dataset = ReuseDataset(
        lambda key: {"x": {1}}, 5, tmp_path, ReusePolicy(3), save=save_tensors, load=load_tensors
    )
    with pytest.raises(UnstorableSampleError, match=r"sample\['x'\], a set.*index=3"):
        dataset[3]


def test_a_stale_file_costs_its_head_alone(tmp_path, monkeypatch):
    save_tensors(IDENTITY.envelope(torch.zeros(1000)), tmp_path / "file")
    os.truncate(tmp_path / "file", HEAD.size)
    other = Identity(generation=4, seed=1, lifetime=4, fingerprint="")
    assert read_tensors(tmp_path / "file", other) is STALE


def test_a_flipped_bit_anywhere_is_noticed(tmp_path):
    path = tmp_path / "file"
    sample = {"x": torch.arange(9, dtype=torch.uint8), "y": "text", "z": 1.5, "a": np.zeros(3)}
    save_tensors(IDENTITY.envelope(sample), path)
    data = bytearray(path.read_bytes())
    for bit in range(8 * len(data)):
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DamagedFileError):
            read_tensors(path, IDENTITY)


def test_a_cut_or_lengthened_file_is_noticed(tmp_path):
    path = tmp_path / "file"
    save_tensors(IDENTITY.envelope({"x": torch.arange(9), "y": "text"}), path)
    data = path.read_bytes()
    for changed in [data[:length] for length in range(len(data))] + [data + b"\0", b"", data * 2]:
        path.write_bytes(changed)
        with pytest.raises(DamagedFileError):
            load_tensors(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
def test_a_named_pipe_or_folder_in_its_place_does_not_hang(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DamagedFileError, match="no regular file"):
        load_tensors(tmp_path / "pipe")
    with pytest.raises(OSError):
        load_tensors(tmp_path)


def forge(path, layout, values=b"", blocks=b"", tail=b"", **changes):
    """Write a file with true checksums and whatever content."""
    text = layout if isinstance(layout, bytes) else json.dumps(layout).encode()
    front = text + values
    front += bytes(-(HEAD.size + len(front)) % 64)
    fields = {
        "algorithm": 1,
        "checksum": zlib.crc32(blocks, zlib.crc32(front + tail)),
        "digest": IDENTITY.digest(),
        "file_bytes": HEAD.size + len(front) + len(blocks) + len(tail),
        "layout_bytes": len(text),
        "values_bytes": len(values),
        "identity_bytes": 0,
        "tail_bytes": len(tail),
    }
    path.write_bytes(Head(**{**fields, **changes}).pack() + front + blocks + tail)


HUGE = 2**61
HOSTILE = {
    "a huge tensor": (["tensor", "uint8", [HUGE]],),
    "a product beyond 64 bits": (["tensor", "uint8", [HUGE, HUGE, HUGE]],),
    "a negative length": (["tensor", "uint8", [-64]], b"", bytes(64)),
    "two negative lengths": (["tensor", "uint8", [-8, -8]], b"", bytes(64)),
    "a length of another type": (["tensor", "uint8", [64.0]], b"", bytes(64)),
    "a length that is true": (["tensor", "uint8", [True, 64]], b"", bytes(64)),
    "no dtype": (["tensor", "nn", [64]], b"", bytes(64)),
    "a quantized dtype": (["tensor", "quint8", [64]], b"", bytes(64)),
    "strides that lead outside": (["tensor", "uint8", [8, 8], [64, 8]], b"", bytes(64)),
    "negative strides": (["tensor", "uint8", [8, 8], [-8, 1]], b"", bytes(64)),
    "strides of another shape": (["tensor", "uint8", [64], [1, 1]], b"", bytes(64)),
    "more blocks than there are": (["list", [["tensor", "uint8", [64]]] * 2], b"", bytes(64)),
    "more dimensions than exist": (["tensor", "uint8", [1] * 65], b"", bytes(64)),
    "axes of another shape": (["array", "|u1", [8, 8], [0, 0]], b"", bytes(64)),
    "an array of objects": (["array", "|O", [8]], b"", bytes(64)),
    "an array of records": (["array", "i4,i4", [8]], b"", bytes(64)),
    "a huge item": (["array", f"|S{2**31 - 1}", [2**40]], b"", bytes(64)),
    "an array of nothing": (["array", "|S0", [2**40]], b""),
    "a scalar of objects": (["scalar", "|O"], bytes(8)),
    "a class that is no tensor": (["tv", "wrap", {}, ["tensor", "uint8", [64]]], b"", bytes(64)),
    "a module": (["tv", "torch", {}, ["tensor", "uint8", [64]]], b"", bytes(64)),
    "an unknown field": (["tv", "Mask", {"data": 1}, ["tensor", "uint8", [64]]], b"", bytes(64)),
    "boxes alone": (["tv", "BoundingBoxes", {}, ["tensor", "int8", [1, 4]]], b"", bytes(64)),
    "an unknown kind": (["pickle", "cos\nsystem"],),
    "an unknown leaf": ("pickle",),
    "a repetition of nothing": (["again", 0],),
    "a repetition from behind": (["list", [["array", "|u1", [64]], ["again", -1]]], b"", bytes(64)),
    "nothing": ([],),
    "null": (None,),
    "a number": (1,),
    "a dict without values": (["dict", [["a"]]],),
    "a list as key": (["dict", [[["a"], "none"]]],),
    "deep nesting": (b"[" * 10**6,),
    "deep nesting that parses": (json.loads('["list",[' * 200 + '"none"' + "]]" * 200),),
    "a number of many digits": (b"9" * 10**5,),
    "no JSON": (b"\xff\xfe{",),
    "a text beyond the end": ("str", struct.pack("<I", 2**32 - 1), b"", b"abc"),
    "a text shorter than the tail": ("str", struct.pack("<I", 1), b"", b"abc"),
    "a text that is no UTF-8": ("str", struct.pack("<I", 1), b"", b"\xff"),
    "fewer values than said": (["list", ["int", "int"]], bytes(8)),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused(name, tmp_path):
    forge(tmp_path / "file", *HOSTILE[name])
    with pytest.raises(DamagedFileError):
        read_tensors(tmp_path / "file", IDENTITY)


LENGTHS = ["file_bytes", "layout_bytes", "values_bytes", "identity_bytes", "tail_bytes"]


@pytest.mark.parametrize("field", LENGTHS)
@pytest.mark.parametrize("value", [0, 1, 65, 2**32 - 1])
def test_lengths_that_lie_are_refused(field, value, tmp_path):
    good = (["tensor", "uint8", [64]], b"", bytes(64), b"")
    forge(tmp_path / "file", *good)
    assert read_tensors(tmp_path / "file", IDENTITY).tolist() == [0] * 64
    if value == 0 and field in ("values_bytes", "identity_bytes", "tail_bytes"):
        return  # the truth
    forge(tmp_path / "file", *good, **{field: value})
    with pytest.raises(DamagedFileError):
        read_tensors(tmp_path / "file", IDENTITY)


def test_random_files_are_refused(tmp_path):
    generator = np.random.default_rng(0)
    save_tensors(IDENTITY.envelope(SAMPLES["torchvision"]), tmp_path / "good")
    good = (tmp_path / "good").read_bytes()
    end_of_layout = HEAD.size + Head.read(good).layout_bytes
    for _ in range(300):
        text = bytearray(good[HEAD.size : end_of_layout])
        for place in generator.integers(len(text), size=generator.integers(1, 4)):
            text[place] = generator.integers(256)
        forge(tmp_path / "file", bytes(text), blocks=good[-(len(good) - end_of_layout) :])
        with pytest.raises(DamagedFileError):
            read_tensors(tmp_path / "file", IDENTITY)


def test_without_xxhash_it_writes_crc32_and_a_file_with_xxh3_is_rebuilt(tmp_path, monkeypatch):
    pytest.importorskip("xxhash")
    built = []

    def build(key):
        built.append(key.index)
        return torch.full((4,), key.index)

    def dataset():
        policy = ReusePolicy(5)
        return ReuseDataset(build, 2, tmp_path, policy, save=save_tensors, load=load_tensors)

    dataset()[0]
    monkeypatch.delitem(CHECKSUMS, 2)
    with pytest.warns(UserWarning, match="00000000.pt is damaged.*xxhash"):
        dataset()[0]
    assert built == [0, 0]
    assert Head.read((tmp_path / "00000000.pt").read_bytes()).algorithm == 1
    dataset()[0]
    assert built == [0, 0]


def test_a_damaged_file_costs_one_rebuild_and_one_warning(tmp_path):
    def dataset():
        return ReuseDataset(
            lambda key: torch.tensor(key.seed),
            1,
            tmp_path,
            ReusePolicy(5),
            save=save_tensors,
            load=load_tensors,
        )

    first = dataset()[0]
    path = tmp_path / "00000000.pt"
    path.write_bytes(path.read_bytes()[:-1] + b"\0")
    again = dataset()
    with pytest.warns(UserWarning, match="00000000.pt is damaged") as caught:
        same(first, again[0])
    assert len(caught) == 1
    same(first, again[0])
    assert (again.stats().damaged, again.stats().built, again.stats().reused) == (1, 1, 1)


def test_the_library_does_not_import_torchvision_by_itself(tmp_path):
    save_tensors(SAMPLES["torchvision"], tmp_path / "file")
    code = f"""
import sys, reuseloader, torch
reuseloader.save_tensors(torch.zeros(3), {str(tmp_path / "plain")!r})
reuseloader.load_tensors({str(tmp_path / "plain")!r})
assert "torchvision" not in sys.modules
print(type(reuseloader.load_tensors({str(tmp_path / "file")!r})["mask"]).__name__)
"""
    root = Path(__file__).parent.parent
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root)
    assert (run.stdout, run.stderr) == ("Mask\n", "")
