"""Real servers on loopback: an S3 store that speaks the protocol of Amazon's, and nginx."""

from __future__ import annotations

import http.client
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from runs import train
from servers import FAULTS, serving
from test_remote import array_file, contents, record, run_options

from training.data.images import UnreadableError
from training.data.remote import Remote

S3_OPTIONS = {"key": "nobody", "secret": "nothing"}


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """An S3 server with the bucket `photos`, which holds records in class folders."""
    pytest.importorskip("s3fs")
    boto3 = pytest.importorskip("boto3")
    moto = pytest.importorskip("moto.server")
    server = moto.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    endpoint = f"http://127.0.0.1:{server.get_host_and_port()[1]}"
    keys = {"aws_access_key_id": "nobody", "aws_secret_access_key": "nothing"}
    client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", **keys)
    client.create_bucket(Bucket="photos")
    for number in range(18):
        name = f"{('ant', 'bee', 'cow')[number % 3]}/{number:02d}.npy"
        split = "train" if number < 12 else "val"
        body = array_file(record(number))
        client.put_object(Bucket="photos", Key=f"all/{split}/{name}", Body=body)
    yield endpoint
    client.close()
    server.stop()


def s3_store(endpoint: str, split: str = "train", **options: Any) -> Remote:
    storage = {**S3_OPTIONS, "endpoint_url": endpoint, **options.pop("storage", {})}
    quick = {"num_attempts": 2, "pause_s": 0.01, "timeout_s": 10.0}
    return Remote("s3://photos/all", split, storage_options=storage, **{**quick, **options})


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of botocore and moto themselves
def test_a_bucket_is_listed_and_its_records_read(s3: str) -> None:
    source = s3_store(s3)
    assert (len(source), source.classes) == (12, ["ant", "bee", "cow"])
    order = sorted(range(12), key=lambda n: (n % 3, n))
    assert [source[n]["image"].tolist() for n in range(12)] == [record(n).tolist() for n in order]
    assert source.labels.tolist() == [n % 3 for n in order]
    assert s3_store(s3, "val").labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert source.identity() == s3_store(s3).identity()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_record_that_left_the_bucket_is_named(s3: str) -> None:
    import boto3

    source = s3_store(s3)
    keys = {"aws_access_key_id": "nobody", "aws_secret_access_key": "nothing"}
    client = boto3.client("s3", endpoint_url=s3, region_name="us-east-1", **keys)
    body = array_file(record(0))
    try:
        client.delete_object(Bucket="photos", Key="all/train/ant/00.npy")
        with pytest.raises(UnreadableError, match=r"record 0, s3://photos/all/train/ant/00\.npy"):
            source[0]
        client.put_object(Bucket="photos", Key="all/train/ant/00.npy", Body=body[:-9])
        with pytest.raises(UnreadableError, match=rf"got {len(body) - 9} bytes instead of"):
            source[0]
    finally:
        client.put_object(Bucket="photos", Key="all/train/ant/00.npy", Body=body)
        client.close()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_bucket_behind_a_bad_network_gives_whole_records_or_an_error(fault: str, s3: str) -> None:
    with serving() as network:
        network.behind, network.latency_s = s3.removeprefix("http://"), 0.02
        # Without what botocore tries again by itself.
        once = {"config_kwargs": {"retries": {"max_attempts": 0}}}
        source = s3_store(network.url, storage=once, timeout_s=1.0, num_attempts=3)
        network.faults["photos/all/train/ant/00.npy"] = [fault]
        assert source[0]["image"].tolist() == record(0).tolist()
        assert network.asked["photos/all/train/ant/00.npy"] >= 2
        network.faults["photos/all/train/ant/00.npy"] = [fault] * 99
        place = r"^record 0, s3://photos/all/train/ant/00\.npy cannot be read, tried 3 times: ."
        with pytest.raises(UnreadableError, match=place):
            source[0]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_run_trains_on_a_bucket(num_workers: int, s3: str, tmp_path: Path) -> None:
    storage = ",".join(f"{k}: '{v}'" for k, v in {**S3_OPTIONS, "endpoint_url": s3}.items())
    options = run_options("s3://photos/all", "data.size=8", f"num_workers={num_workers}")
    table = train(tmp_path / "run", *options, f"data.storage_options={{{storage}}}")
    assert [(row["built"], row["reused"]) for row in table] == [(8, 0), (4, 4)]


@pytest.fixture
def nginx(tmp_path: Path) -> Iterator[str]:
    """nginx on loopback over a folder of records."""
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if program is None:
        pytest.skip("nginx is not installed (Debian: nginx-light)")
    root = tmp_path / "root"
    for name, data in contents().items():
        for path in (root / name, root / "bad" / name):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for folder in (tmp_path, root, *(path for path in root.rglob("*") if path.is_dir())):
        folder.chmod(0o755)
    (tmp_path / "nginx.conf").write_text(
        f"""
        daemon off; pid {tmp_path}/nginx.pid; error_log {tmp_path}/error.log;
        user root; worker_processes 1; events {{ worker_connections 64; }}
        http {{
            access_log off;
            client_body_temp_path {tmp_path}/1; proxy_temp_path {tmp_path}/2;
            fastcgi_temp_path {tmp_path}/3; uwsgi_temp_path {tmp_path}/4;
            scgi_temp_path {tmp_path}/5;
            server {{ listen 127.0.0.1:{port}; root {root}; sendfile on;
                location = /bad/train/005.npy {{ return 500; }}
                location = /bad/train/006.npy {{ return 444; }}  # closes the connection
                location = /bad/train/007.npy {{ limit_rate 40; }}  # bytes a second
            }}
        }}
        """
    )
    process = subprocess.Popen([program, "-p", str(tmp_path), "-c", str(tmp_path / "nginx.conf")])
    try:
        _wait_for(port, process)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(10)


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    for _ in range(200):
        assert process.poll() is None, "nginx did not start"
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
            connection.request("GET", "/train.csv")
            connection.getresponse().read()
            connection.close()
            return
        except OSError:
            time.sleep(0.05)
    raise AssertionError("nginx does not answer")


@pytest.mark.slow
def test_a_run_trains_on_what_nginx_serves(nginx: str, tmp_path: Path) -> None:
    pytest.importorskip("aiohttp")
    options = run_options(nginx, "data.size=20", "num_workers=2", "epochs=3")
    table = train(tmp_path / "run", *options)
    assert [(row["built"], row["reused"]) for row in table] == [(20, 0), (10, 10), (10, 10)]


@pytest.mark.slow
def test_a_record_that_changes_its_length_under_nginx_is_never_taken(
    nginx: str, tmp_path: Path
) -> None:
    pytest.importorskip("aiohttp")
    source = Remote(nginx, "train", num_attempts=2, pause_s=0.01)
    file = tmp_path / "root" / "train" / "003.npy"
    data = file.read_bytes()
    for other in (data[:40], data + b"!", b""):
        file.write_bytes(other)
        with pytest.raises(UnreadableError, match=f"got {len(other)} bytes instead of {len(data)}"):
            source[3]
    file.write_bytes(data)
    assert source[3]["image"].tolist() == record(3).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("number", [5, 6, 7], ids=["500", "cut", "slow"])
def test_a_record_that_nginx_does_not_give_is_named(number: int, nginx: str) -> None:
    pytest.importorskip("aiohttp")
    source = Remote(f"{nginx}/bad", "train", num_attempts=2, pause_s=0.01, timeout_s=0.5)
    place = f"^record {number}, {nginx}/bad/train/00{number}.npy cannot be read, tried 2 times: ."
    with pytest.raises(UnreadableError, match=place):
        source[number]
    assert source[8]["image"].tolist() == record(8).tolist()
