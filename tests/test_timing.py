from __future__ import annotations

import time

import pytest
import torch

from training.timing import PHASES, Clock, CudaClock, DeviceTimes, Mark


class Hand:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.time_s = 0.0

    def __call__(self) -> float:
        return self.time_s

    def pass_(self, seconds: float) -> None:
        self.time_s += seconds


def spent(clock: Clock) -> dict[str, float]:
    """Return the phases that took time."""
    return {name: value for name, value in clock.seconds().items() if value}


def test_every_moment_belongs_to_one_phase() -> None:
    hand = Hand()
    clock = Clock(hand)
    hand.pass_(1)
    with clock.phase("compute"):
        hand.pass_(2)
        with clock.phase("wait"):
            hand.pass_(4)
        hand.pass_(8)
    hand.pass_(16)

    assert spent(clock) == {"other": 17, "compute": 10, "wait": 4}
    assert hand.time_s == sum(clock.seconds().values())


def test_an_error_inside_a_phase_ends_it() -> None:
    hand = Hand()
    clock = Clock(hand)
    with pytest.raises(ZeroDivisionError), clock.phase("eval"):
        hand.pass_(1)
        raise ZeroDivisionError
    hand.pass_(2)

    assert spent(clock) == {"eval": 1, "other": 2}


def test_warm_up_takes_everything_once_for_each_thing_that_has_one() -> None:
    hand = Hand()
    clock = Clock(hand)
    for what in ("train", "eval", "train"):
        clock.begin_warmup(what)
        with clock.phase("wait"):
            hand.pass_(1)
        clock.end_warmup()
        clock.end_warmup()
        hand.pass_(2)

    assert spent(clock) == {"warmup": 2, "wait": 1, "other": 6}


def test_a_clock_starts_at_nothing_or_where_a_run_had_come_to() -> None:
    hand = Hand()
    clock = Clock(hand)
    hand.pass_(1)
    clock.start()
    assert spent(clock) == {}
    hand.pass_(2)
    clock.start({"wait": 3.0, "other": 1.0})
    hand.pass_(4)
    assert spent(clock) == {"wait": 3, "other": 5}


def marks(*pairs: tuple[str, float]) -> dict[str, float]:
    times = DeviceTimes()
    for kind, time_s in pairs:
        times.add(Mark(kind, time_s))
    return times.seconds


def test_a_gpu_that_had_work_did_not_wait_though_the_host_did() -> None:
    seconds = marks(
        *(("ask", 0), ("copy", 1), ("copied", 2), ("compute", 2), ("end", 10)),
        *(("ask", 3), ("copy", 8), ("copied", 9), ("compute", 10), ("end", 18)),
    )

    assert seconds == {"wait": 1, "copy": 1, "compute": 16}


def test_a_gpu_waits_from_the_end_of_its_work_until_the_batch_is_there() -> None:
    seconds = marks(
        *(("compute", 0), ("end", 4), ("ask", 1), ("copy", 9), ("copied", 11), ("compute", 11)),
        *(("end", 12),),
    )

    assert seconds == {"wait": 5, "copy": 2, "compute": 5}


def test_what_a_gpu_idles_before_a_batch_is_asked_for_is_no_waiting_for_input() -> None:
    seconds = marks(
        *(("compute", 0), ("end", 4), ("ask", 7), ("copy", 9), ("copied", 9), ("compute", 9)),
        *(("end", 10),),
    )

    assert seconds == {"wait": 2, "copy": 0, "compute": 5}


def test_a_copy_beside_computing_costs_nothing() -> None:
    seconds = marks(
        *(("compute", 0), ("end", 10), ("ask", 1), ("copy", 2), ("copied", 7), ("compute", 10)),
        *(("end", 11),),
    )

    assert seconds == {"wait": 0, "copy": 0, "compute": 11}


def test_a_batch_that_is_used_twice_is_waited_for_once() -> None:
    seconds = marks(
        *(("ask", 0), ("copy", 3), ("copied", 4), ("compute", 4), ("end", 5)),
        *(("compute", 7), ("end", 8), ("ask", 8)),
    )

    assert seconds == {"wait": 3, "copy": 1, "compute": 2}


class Stream:
    """A stream of a GPU that exists on paper: when its last work will be done."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.done_s = 0.0

    def run(self, seconds: float) -> None:
        self.done_s = max(self.done_s, self.gpu.hand.time_s) + seconds

    def wait_stream(self, other: Stream) -> None:
        self.done_s = max(self.done_s, other.done_s)


class Event:
    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        gpu.num_events += 1

    def record(self, stream: Stream) -> None:
        self.time_s = max(stream.done_s, self.gpu.hand.time_s)

    def query(self) -> bool:
        return self.time_s <= self.gpu.hand.time_s

    def elapsed_time(self, other: Event) -> float:
        assert self.query() and other.query(), "read before its time has come"
        assert other.time_s >= self.time_s, "not promised to be negative"
        return 1000 * (other.time_s - self.time_s)


class Gpu:
    """In the place of torch.cuda."""

    def __init__(self, hand: Hand) -> None:
        self.hand = hand
        self.computing, self.copies = Stream(self), Stream(self)
        self.num_events = self.num_waits = 0

    def Event(self, enable_timing: bool) -> Event:  # noqa: N802
        assert enable_timing
        return Event(self)

    def current_stream(self, device: torch.device) -> Stream:
        return self.computing

    def synchronize(self, device: torch.device) -> None:
        self.num_waits += 1
        self.hand.time_s = max(self.hand.time_s, self.computing.done_s, self.copies.done_s)


def train(
    clock: CudaClock, gpu: Gpu, steps: int, load_s: float, copy_s: float, step_s: float,
    log_s: float = 0.0,
) -> None:  # fmt: skip
    """Train on paper, as the loop does: the host starts a step in no time."""
    for _ in range(steps):
        clock.wait_begins(gpu.copies)
        with clock.phase("wait"):
            gpu.hand.pass_(load_s)
        with clock.phase("copy"):
            clock.copy_begins(gpu.copies)
            gpu.copies.run(copy_s)
            clock.copy_ends(gpu.copies)
            gpu.computing.wait_stream(gpu.copies)
        with clock.phase("compute"):
            gpu.computing.run(step_s)
        if log_s:
            gpu.synchronize(torch.device("cuda"))
            gpu.hand.pass_(log_s)


def make_gpu_clock() -> tuple[Hand, Gpu, CudaClock]:
    hand = Hand()
    gpu = Gpu(hand)
    return hand, gpu, CudaClock(torch.device("cuda"), hand, gpu)


def measured(clock: Clock) -> dict[str, float]:
    """Return the phases that took time, to a thousandth."""
    return {name: round(value, 3) for name, value in clock.seconds().items() if value > 1e-6}


@pytest.mark.parametrize("steps", [1, 3, 5000])
def test_on_a_gpu_the_wait_is_the_gpus(steps: int) -> None:
    hand, gpu, clock = make_gpu_clock()
    train(clock, gpu, steps, load_s=5, copy_s=1, step_s=2)

    # While a step of 2 runs, the loader works: of its 5 seconds 2 are left, behind the copy.
    expected = {"wait": 5 + 2 * (steps - 1), "copy": steps, "compute": 2 * steps}
    assert gpu.num_waits == 0
    assert expected == measured(clock)
    assert hand.time_s == sum(expected.values())


def test_on_a_gpu_that_is_busy_nothing_is_waited_for() -> None:
    hand, gpu, clock = make_gpu_clock()
    train(clock, gpu, 100, load_s=1, copy_s=0.5, step_s=4)

    assert measured(clock) == {"wait": 1, "copy": 0.5, "compute": 400}
    assert hand.time_s == 401.5


def test_on_a_gpu_logging_is_neither_waiting_nor_computing() -> None:
    _, gpu, clock = make_gpu_clock()
    train(clock, gpu, 10, load_s=3, copy_s=1, step_s=2, log_s=4)

    assert measured(clock) == {"wait": 30, "copy": 10, "compute": 20, "other": 40}


@pytest.mark.parametrize("phase", ["eval", "checkpoint"])
def test_on_a_gpu_what_is_still_computed_is_no_part_of_what_follows(phase: str) -> None:
    _, gpu, clock = make_gpu_clock()
    train(clock, gpu, 1, load_s=1, copy_s=1, step_s=2)
    with clock.phase(phase):
        gpu.hand.pass_(8)
    train(clock, gpu, 1, load_s=1, copy_s=1, step_s=2)

    assert {"wait": 2, "copy": 2, "compute": 4, phase: 8} == measured(clock)


def test_on_a_gpu_warm_up_ends_when_its_work_is_done() -> None:
    _, gpu, clock = make_gpu_clock()
    clock.begin_warmup("train")
    train(clock, gpu, 1, load_s=5, copy_s=1, step_s=30)
    clock.end_warmup()
    train(clock, gpu, 2, load_s=5, copy_s=1, step_s=2)

    assert measured(clock) == {"warmup": 36, "wait": 7, "copy": 2, "compute": 4}


def test_on_a_gpu_each_epoch_begins_anew_and_a_resumed_one_goes_on() -> None:
    _, gpu, clock = make_gpu_clock()
    train(clock, gpu, 2, load_s=5, copy_s=1, step_s=2)
    clock.start()
    train(clock, gpu, 1, load_s=5, copy_s=1, step_s=2)
    assert measured(clock) == {"wait": 5, "copy": 1, "compute": 2}
    clock.start({"wait": 10.0, "eval": 1.0})
    train(clock, gpu, 1, load_s=5, copy_s=1, step_s=2)
    assert measured(clock) == {"wait": 15, "copy": 1, "compute": 2, "eval": 1}


def test_on_a_gpu_the_events_are_used_again() -> None:
    _, gpu, clock = make_gpu_clock()
    train(clock, gpu, 20_000, load_s=5, copy_s=1, step_s=2)

    assert gpu.num_events < 5000


@pytest.mark.gpu
def test_the_phases_of_a_real_gpu_add_up() -> None:
    device = torch.device("cuda")
    copies, clock = torch.cuda.Stream(device), Clock.of(device)
    matrix = torch.rand(4096, 4096, device=device)
    torch.cuda.synchronize()
    clock.start()
    start = time.perf_counter()
    for _ in range(20):
        clock.wait_begins(copies)
        with clock.phase("wait"):
            time.sleep(0.02)
        with clock.phase("copy"), torch.cuda.stream(copies):
            clock.copy_begins(copies)
            torch.rand(1024, 1024).pin_memory().to(device, non_blocking=True)
            clock.copy_ends(copies)
        torch.cuda.current_stream(device).wait_stream(copies)
        with clock.phase("compute"):
            matrix @ matrix
    seconds = clock.seconds()
    whole = time.perf_counter() - start

    assert isinstance(clock, CudaClock)
    assert whole == pytest.approx(sum(seconds.values()), rel=0.02)
    assert all(value >= 0 for value in seconds.values())
    assert seconds["wait"] > 0 and seconds["compute"] > 0


def test_a_cpu_is_timed_by_the_wall_clock() -> None:
    assert type(Clock.of(torch.device("cpu"))) is Clock
    assert set(PHASES) == set(Clock().seconds())
