"""Who may use a folder, what is swept at the start, and what is never touched."""

from __future__ import annotations

import gc
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from builds import draw, names, number

from reuseloader import ReuseDataLoader, ReuseDataset, ReusePolicy

IMPORTS = """
import warnings
warnings.simplefilter("error")
from pathlib import Path
import torch
from builds import draw, number, sleepy
from reuseloader import ReuseDataLoader, ReuseDataset, ReusePolicy
"""
RANK = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


def open_here(folder: Path, **options: Any) -> ReuseDataset:
    return ReuseDataset(draw, 4, folder, ReusePolicy(9), **options)


def open_there(process: Any, folder: Path, name: str = "held") -> None:
    dataset = f"ReuseDataset(draw, 4, Path({str(folder)!r}), ReusePolicy(9))"
    process.run(f"{IMPORTS}\n{name} = {dataset}")


OURS = ["00000003.pt.1234-ab.tmp", "00000001.pt.x.tmp", "00000009.pt.a b.c.tmp",
        "100000000.pt.x.tmp"]  # fmt: skip
FOREIGN = ["notes.tmp", "model.pt.tmp", "model.pt.x.tmp", "123.pt.x.tmp", "x00000123.pt.x.tmp",
           "00000123.pt.x.tmp.bak", "00000123.pt.x.TMP", "00000123.pth.x.tmp", "00000123.txt",
           "00000123.npz.x.tmp", ".00000123.pt.x.tmp", "000000123.pt.x.tmp", "00000123.pt.x",
           "00000123xpt.x.tmp", "00000123.pt.tmp", "\u0660\u0661\u0662\u0663\u0664\u0665\u0666"
           "\u0667.pt.x.tmp", ".lock", "README"]  # fmt: skip


def test_temporary_files_of_an_earlier_run_are_removed_and_nothing_else(tmp_path: Path) -> None:
    for name in [*OURS, *FOREIGN]:
        (tmp_path / name).write_text("keep me")
    held = open_here(tmp_path)
    assert [held[index]["index"] for index in range(4)] == [0, 1, 2, 3]
    assert names(tmp_path) == sorted([*FOREIGN, *(f"0000000{index}.pt" for index in range(4))])
    assert {(tmp_path / name).read_text() for name in FOREIGN} == {"keep me"}


def test_samples_beyond_the_size_are_kept(tmp_path: Path) -> None:
    (tmp_path / "00000123.pt").write_text("keep me")
    open_here(tmp_path)
    assert names(tmp_path) == ["00000123.pt"]


def test_a_sweep_removes_no_directory_and_follows_no_link(tmp_path: Path) -> None:
    folder, target = tmp_path / "cache", tmp_path / "target"
    (folder / "00000001.pt.x.tmp").mkdir(parents=True)
    (folder / "00000001.pt.x.tmp" / "photo").write_text("keep me")
    target.write_text("keep me")
    (folder / "00000002.pt.x.tmp").symlink_to(target)
    (folder / "deeper").mkdir()
    (folder / "deeper" / "00000003.pt.x.tmp").write_text("keep me")
    open_here(folder)[1]
    assert (folder / "00000001.pt.x.tmp" / "photo").read_text() == "keep me"
    assert target.read_text() == "keep me"
    assert (folder / "deeper" / "00000003.pt.x.tmp").exists()


def test_the_folder_is_made_with_its_parents_and_holds_nothing(tmp_path: Path) -> None:
    held = open_here(tmp_path / "a" / "b")
    assert names(tmp_path / "a" / "b") == []
    assert Path(held.directory) == tmp_path / "a" / "b"


@pytest.mark.parametrize("where", ["file", "file/deeper", "/proc/nowhere", "/proc/self/task"])
def test_a_folder_that_cannot_be_made_or_written_is_an_error_naming_it(
    where: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("keep me")
    folder = tmp_path / where
    with pytest.raises((OSError, ValueError), match=re.escape(str(folder))):
        open_here(folder)
    assert names(tmp_path) == ["file"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_without_the_right_to_write_is_an_error_naming_it(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o500)
    with pytest.raises((OSError, ValueError), match=re.escape(str(folder))):
        open_here(folder)


def saving(folder: Path, during: Callable[[Path], None]) -> ReuseDataset:
    """A dataset in which something happens while a temporary file is being written."""

    def save(obj: Any, path: Any) -> None:
        torch.save(obj, path)
        during(Path(path))

    return open_here(folder, save=save, load=lambda path: torch.load(path, weights_only=False))


def test_opening_again_sweeps_no_file_that_is_being_written(tmp_path: Path) -> None:
    seen = []

    def during(path: Path) -> None:
        open_here(tmp_path)
        ReuseDataLoader(number, 4, tmp_path, lifetime=9)
        seen.append(path.exists())

    held = saving(tmp_path, during)
    held[1]
    assert (seen, held.stats().stored, names(tmp_path)) == ([True], 1, ["00000001.pt"])


def refused(process: Any, folder: Path) -> str:
    with pytest.raises(RuntimeError) as caught:
        open_there(process, folder)
    return str(caught.value)


def test_a_second_process_is_refused_until_the_last_holder_is_gone(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    other = start()
    first = open_here(tmp_path)
    second = open_here(tmp_path)  # the same process may
    text = refused(other, tmp_path)
    assert str(tmp_path) in text
    assert re.search(rf"\b{os.getpid()}\b", text)
    assert names(tmp_path) == []
    del first
    gc.collect()
    refused(other, tmp_path)
    assert second[0]["index"] == 0
    del second
    gc.collect()
    open_there(other, tmp_path)
    with pytest.raises(RuntimeError, match=rf"\b{other.pid}\b"):
        open_here(tmp_path)
    other.run("del held; import gc; gc.collect()")
    open_here(tmp_path)


def test_a_refused_process_sweeps_nothing_and_another_folder_is_free(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    other = start()
    folder = tmp_path / "cache"
    link = tmp_path / "link"
    link.symlink_to(folder)
    seen = []

    def during(path: Path) -> None:
        refused(other, folder)
        refused(other, link)  # the same folder by another name
        open_there(other, tmp_path / "another")
        seen.append(path.exists())

    held = saving(folder, during)
    held[1]
    assert (seen, held.stats().stored) == ([True], 1)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_with_workers_frees_the_folder(
    num_workers: int, start: Callable[..., Any], tmp_path: Path
) -> None:
    other = start()
    loader = ReuseDataLoader(
        draw, 6, tmp_path, lifetime=9, num_workers=num_workers,
        persistent_workers=num_workers > 0,
    )  # fmt: skip
    for _ in loader:
        pass
    refused(other, tmp_path)
    next(iter(loader))
    del loader
    gc.collect()
    open_there(other, tmp_path)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_killed_holder_frees_the_folder_while_its_workers_live(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    holder = start()
    options = f"sleepy, 4, Path({str(tmp_path)!r}), lifetime=9, num_workers=2"
    holder.run(f"{IMPORTS}\nloader = ReuseDataLoader({options}); batches = iter(loader)")
    holder.run("import multiprocessing")
    workers = holder.run("answer = [p.pid for p in multiprocessing.active_children()]")
    with pytest.raises(RuntimeError, match=str(holder.pid)):
        open_here(tmp_path)
    holder.kill()
    assert (len(workers), all(map(alive, workers))) == (2, True)
    assert open_here(tmp_path)[1]["index"] == 1
    assert all(map(alive, workers))


def test_two_ranks_of_one_job_share_the_folder_and_no_one_else(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    first, second = start(RANK="0", LOCAL_RANK="0", **RANK), start(RANK="1", LOCAL_RANK="1", **RANK)
    open_there(first, tmp_path)
    first.run(
        "import threading; go = threading.Event()\n"
        "def slow(obj, path): torch.save(obj, path); go.wait()\n"
        f"held = ReuseDataset(draw, 4, Path({str(tmp_path)!r}), ReusePolicy(9), save=slow)\n"
        "thread = threading.Thread(target=held.__getitem__, args=(1,)); thread.start()"
    )
    deadline = time.monotonic() + 10
    while not list(tmp_path.glob("*.tmp")) and time.monotonic() < deadline:
        time.sleep(0.01)
    before = names(tmp_path)
    open_there(second, tmp_path)
    assert names(tmp_path) == before
    first.run("go.set(); thread.join()")
    assert names(tmp_path) == ["00000001.pt"]
    with pytest.raises(RuntimeError, match=re.escape(str(tmp_path))):
        open_here(tmp_path)  # their parent, which is no rank
    first.kill()
    with pytest.raises(RuntimeError, match=re.escape(str(tmp_path))):
        open_here(tmp_path)
    second.kill()
    assert open_here(tmp_path)[0]["index"] == 0


def test_ranks_that_open_a_folder_at_once_do_not_stumble_over_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch, is_directory = Path.touch, os.path.isdir

    def swept(path: Path) -> None:  # another rank, alone with the lock, takes it for a leftover
        touch(path)
        path.unlink()

    def vanishing(path: str) -> bool:  # a leftover that is another rank's, which removes it itself
        found = is_directory(path)
        if path.endswith(".tmp"):
            os.unlink(path)
        return found

    (tmp_path / "00000001.pt.1-aa-0.tmp").touch()
    monkeypatch.setattr(Path, "touch", swept)
    monkeypatch.setattr(os.path, "isdir", vanishing)
    assert open_here(tmp_path)[0]["index"] == 0


def test_ranks_of_two_jobs_do_not_share_a_folder(start: Callable[..., Any], tmp_path: Path) -> None:
    first = start(RANK="0", **RANK)
    open_there(first, tmp_path)
    for other in ({"MASTER_PORT": "29501"}, {"TORCHELASTIC_RUN_ID": "another"}):
        stranger = start(RANK="1", **(RANK | other))
        with pytest.raises(RuntimeError, match=rf"FolderInUseError: .* process {first.pid}\b"):
            open_there(stranger, tmp_path)


def test_ranks_of_one_job_share_a_folder_when_they_were_launched_apart(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    rank, launcher = start(RANK="0", **RANK), start(RANK="1", **RANK)
    open_there(rank, tmp_path)
    source = f"{IMPORTS}\nheld = ReuseDataset(draw, 4, Path({str(tmp_path)!r}), ReusePolicy(9))"
    launcher.run(
        "import subprocess, sys\n"
        f"done = subprocess.run([sys.executable, '-c', {source!r}], capture_output=True, text=True)"
    )
    assert launcher.run("answer = done.stderr") == ""
    assert launcher.run("answer = done.returncode") == 0


def test_ranks_of_two_launches_that_meet_at_the_same_place_do_not_share_a_folder(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    launch = RANK | {"GROUP_WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "none"}
    rank, other_launcher = start(RANK="0", **launch), start()
    open_there(rank, tmp_path)
    source = f"{IMPORTS}\nheld = ReuseDataset(draw, 4, Path({str(tmp_path)!r}), ReusePolicy(9))"
    other_launcher.run(
        "import os, subprocess, sys\n"
        f"env = dict(os.environ, RANK='1', **{launch!r})\n"
        f"done = subprocess.run([sys.executable, '-c', {source!r}], env=env, "
        "capture_output=True, text=True)"
    )
    assert f"process {rank.pid};" in other_launcher.run("answer = done.stderr")
    # Of the same launch, with a script between torchrun and the rank.
    script = subprocess.run(
        ["sh", "-c", '"$@"; exit $?', "sh", sys.executable, "-c", source],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **launch, "RANK": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (script.returncode, script.stderr) == (0, "")


RANKS = """
import os, sys
import torch.distributed as dist
from builds import draw
from reuseloader import ReuseDataLoader
dist.init_process_group("gloo")
rank, num = dist.get_rank(), dist.get_world_size()
loader = ReuseDataLoader(draw, 48, sys.argv[1], lifetime=3, shuffle=True, batch_size=4,
                         num_replicas=num, rank=rank, num_workers=1)
for epoch in range(7):
    assert sum(len(batch["index"]) for batch in loader) == 24
    print(f"rank={rank} {epoch=} built={loader.stats().built}")
    dist.barrier()
"""


@pytest.mark.slow
@pytest.mark.parametrize("num_launches", [1, 2])
def test_ranks_of_torchrun_share_a_folder_and_build_each_sample_once_a_generation(
    num_launches: int, tmp_path: Path
) -> None:
    script, folder = tmp_path / "ranks.py", tmp_path / "cache"
    script.write_text(RANKS)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        sys.executable, "-m", "torch.distributed.run", f"--nnodes={num_launches}",
        f"--nproc-per-node={2 // num_launches}", "--rdzv-backend=c10d", "--rdzv-id=one",
        f"--rdzv-endpoint=127.0.0.1:{port}", str(script), str(folder),
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    launches = [
        subprocess.Popen(
            command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for _ in range(num_launches)
    ]
    results = [launch.communicate(timeout=120) for launch in launches]
    assert [launch.returncode for launch in launches] == [0] * num_launches, results
    output = "".join(out for out, _ in results)
    built = {
        (int(rank), int(epoch)): int(number)
        for rank, epoch, number in re.findall(r"rank=(\d) epoch=(\d) built=(\d+)", output)
    }
    expected = {(rank, epoch): 8 if epoch else 24 for rank in range(2) for epoch in range(7)}
    assert expected == built
    assert not list(folder.glob("*.tmp"))


FORKED = """
import multiprocessing, os
context = multiprocessing.get_context("fork")
gate = context.Barrier(2)
def rank(number, folder, results):
    os.environ.update(RANK=str(number), LOCAL_RANK=str(number), WORLD_SIZE="2")
    try:
        held = ReuseDataset(draw, 4, Path(folder), ReusePolicy(9))
        gate.wait(10)
        results.put([held[index]["index"] for index in range(4)])
        gate.wait(10)
    except Exception as error:
        gate.abort()
        results.put(repr(error))
def run(folder):
    results = context.Queue()
    ranks = [context.Process(target=rank, args=(n, folder, results)) for n in range(2)]
    for process in ranks: process.start()
    got = [results.get(timeout=20) for _ in ranks]
    for process in ranks: process.join()
    return got
"""


@pytest.mark.parametrize("parent_holds", [False, True])
def test_forked_ranks_share_the_folder(
    parent_holds: bool, start: Callable[..., Any], tmp_path: Path
) -> None:
    parent = start()
    parent.run(IMPORTS + FORKED)
    if parent_holds:
        open_there(parent, tmp_path)
    assert parent.run(f"answer = run({str(tmp_path)!r})") == [[0, 1, 2, 3]] * 2
    if not parent_holds:
        open_here(tmp_path)


def test_where_locking_is_not_possible_it_goes_on_with_one_warning(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    process = start()
    process.run(
        "import errno, fcntl\n"
        "def refuse(*args): raise OSError(errno.ENOLCK, 'No locks available')\n"
        "fcntl.flock = fcntl.lockf = fcntl.fcntl = refuse\n" + IMPORTS +
        "warnings.simplefilter('always')\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        f"    loader = ReuseDataLoader(draw, 4, Path({str(tmp_path)!r}), lifetime=9)\n"
        "    seen = [len(list(loader)) for _ in range(2)]\n"
        "texts = [str(warning.message) for warning in caught]"
    )  # fmt: skip
    assert process.run("answer = seen") == [4, 4]
    texts = process.run("answer = texts")
    assert (len(texts), str(tmp_path) in texts[0]) == (1, True)
