from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path
from typing import Any

import pytest
from histories import write_run, write_serial_runs

from training.checks import ConfigError
from training.report.history import read_history
from training.report.plan import PLAN, setting_names
from training.report.sweep import Sweep, read_sweep
from training.report.sweep_text import as_csv, describe_sweep
from training.report.verdict import gain, verdict

ONCE = {"row": {"epoch_s": 9.0}}
TWICE = {"row": {"epoch_s": 4.5, "wait_s": 1.0}}


def lifetimes(tmp_path: Path, **changes: Any) -> Sweep:
    """Return a sweep of lifetime 1 and 2 with two seeds, 2 being twice as fast."""
    runs = {
        "0": {"lifetime": 1, "seed": 0, "accuracies": [0.5, 0.9, 1.0], **ONCE},
        "1": {"lifetime": 1, "seed": 1, "accuracies": [0.5, 1.0, 0.98], **ONCE},
        "2": {"lifetime": 2, "seed": 0, "accuracies": [0.5, 0.9, 1.0], **TWICE},
        "3": {"lifetime": 2, "seed": 1, "accuracies": [0.5, 0.9, 0.99], **TWICE},
    }
    runs = {name: {**options, **changes.get(f"run{name}", {})} for name, options in runs.items()}
    return read_sweep(write_serial_runs(tmp_path / "sweep", runs), changes.get("target"))


def test_runs_that_differ_by_their_seed_alone_are_one_setting(tmp_path: Path) -> None:
    sweep = lifetimes(tmp_path)

    assert list(sweep.sections) == [""]
    assert [(s.name, s.lifetime, len(s.runs)) for s in sweep.first] == [
        ("lifetime=1", 1, 2),
        ("lifetime=2", 2, 2),
    ]


def test_the_target_is_a_share_of_the_best_of_the_shortest_lifetime(tmp_path: Path) -> None:
    sweep = lifetimes(tmp_path)

    assert sweep.target == pytest.approx(0.99)  # both seeds reach 1.0
    assert sweep.target_source == "99 % of the best of lifetime=1"


def test_the_time_to_the_target_ends_with_the_epoch_that_reaches_it(tmp_path: Path) -> None:
    sweep = lifetimes(tmp_path)
    one, two = sweep.first

    assert one.time_to(sweep.target).values == (27.0, 18.0)
    assert one.epochs_to(sweep.target).values == (3, 2)
    assert two.time_to(sweep.target).values == (13.5, 13.5)
    assert gain(sweep, two) == pytest.approx(22.5 / 13.5)
    text = describe_sweep(sweep, None)
    assert "| time to 99.0 % | epochs to it | faster | time |" in text
    assert "| 22.5 s | 2.5 | 1.00 x | 27 s |" in text
    assert "| 13.5 s | 3 | 1.67 x | 13.5 s |" in text


def test_a_target_may_be_given_and_not_be_reached(tmp_path: Path) -> None:
    sweep = lifetimes(tmp_path, target=0.999)
    one, two = sweep.first

    assert one.time_to(sweep.target).is_complete
    assert not two.time_to(sweep.target).is_complete
    assert math.isnan(gain(sweep, two))
    assert "| 13.5 s (1 of 2 seeds) |" in describe_sweep(sweep, None)
    assert "99.90 % accuracy, given" in describe_sweep(sweep, None)


def test_the_target_of_the_config_holds_where_none_is_given(tmp_path: Path) -> None:
    runs = {"0": {"report": {"enabled": True, "target": 0.8}}, "1": {"seed": 1, "report": None}}
    folder = write_serial_runs(tmp_path / "sweep", runs)

    assert read_sweep(folder).target == 0.8
    assert read_sweep(folder, 0.7).target == 0.7


def test_the_verdict_names_the_fastest_that_keeps_the_accuracy(tmp_path: Path) -> None:
    assert verdict(lifetimes(tmp_path)) == (
        "Choose lifetime=2: it reaches 99.0 % accuracy in 13.5 s, lifetime=1 in 22.5 s "
        "(1.7 times as fast), and ends at 99.50 ± 0.50 % against 99.00 ± 1.00 % (2 seeds). "
        "The accuracies differ by less than the seeds scatter; 2 seeds say little. "
        "Longer ones were not tried."
    )


def test_the_report_says_by_what_rule_a_lifetime_is_chosen(tmp_path: Path) -> None:
    said = describe_sweep(lifetimes(tmp_path), None)

    # Seeds of lifetime=1 end at 100 and 98 %.
    assert (
        "The choice: a lifetime keeps the accuracy if its mean ends at most 1 points below "
        "lifetime=1 on the same seeds, and no seed of it more than 2 below the lowest there. Of "
        "those that do, the one that reaches the target soonest is chosen; of several within 5 % "
        "of that, the shortest lifetime."
    ) in said
    single = write_serial_runs(tmp_path / "single", {"0": {"accuracies": [0.9]}})
    assert "The choice:" not in describe_sweep(read_sweep(single), None)


def test_it_is_said_of_a_faster_one_that_some_seed_does_not_reach_the_target(
    tmp_path: Path,
) -> None:
    runs = {
        f"{lifetime}{seed}": {
            **{"lifetime": lifetime, "seed": seed, "accuracies": [0.5, accuracy]},
            "row": {"epoch_s": 8.0 / lifetime, "wait_s": 1.0},
        }
        for lifetime, accuracies in {1: [0.9, 0.9], 2: [0.9, 0.9], 4: [0.9, 0.89]}.items()
        for seed, accuracy in enumerate(accuracies)
    }
    said = verdict(read_sweep(write_serial_runs(tmp_path / "sweep", runs)))

    assert said.startswith("Choose lifetime=2: ")
    assert said.endswith(" 2 seeds say little. lifetime=4 does not reach 89.1 % with every seed.")


def test_several_that_lose_accuracy_are_named_together(tmp_path: Path) -> None:
    sweep = seeds_of(tmp_path / "sweep", {1: [0.99] * 2, 2: [0.9] * 2, 4: [0.8] * 2, 8: [0.7] * 2})
    text = verdict(sweep)
    assert "loses" not in text and " lose accuracy." in text


def test_of_lifetimes_that_are_about_as_fast_the_shorter_is_chosen(tmp_path: Path) -> None:
    runs = {
        "0": {"lifetime": 1, "accuracies": [0.5, 0.9], **ONCE},
        "1": {"lifetime": 2, "accuracies": [0.5, 0.9], **TWICE},
        "2": {"lifetime": 4, "accuracies": [0.5, 0.9], "row": {"epoch_s": 4.4, "wait_s": 1.0}},
    }
    said = verdict(read_sweep(write_serial_runs(tmp_path / "sweep", runs)))

    assert said.startswith("Choose lifetime=2: it reaches 89.1 % accuracy in 9 s, lifetime=1 in")
    assert "Faster still" not in said


def test_the_verdict_says_where_the_seeds_contradict_each_other(tmp_path: Path) -> None:
    rows = {1: [9.0, 6.0, 9.0], 2: [6.5, 6.0, 4.0]}
    runs = {
        f"{lifetime}{seed}": {
            "lifetime": lifetime,
            "seed": seed,
            "accuracies": [0.5, 0.9 + 0.01 * lifetime],
            "row": {"epoch_s": seconds},
        }
        for lifetime, times in rows.items()
        for seed, seconds in enumerate(times)
    }
    said = verdict(read_sweep(write_serial_runs(tmp_path / "sweep", runs)))

    assert said.startswith("Choose lifetime=2: ")
    assert said.endswith(
        "(3 seeds). The accuracies differ by more than the seeds scatter, and the times of some "
        "seeds lie the other way round. Longer ones were not tried."
    )


def test_a_trial_of_one_batch_has_no_verdict(tmp_path: Path) -> None:
    trainer = {"fast_dev_run": True}
    runs = {str(n): {"lifetime": n, "trainer": trainer} for n in (1, 2)}
    sweep = read_sweep(write_serial_runs(tmp_path / "sweep", runs))

    assert verdict(sweep) == "A trial of one batch a job: it works, and compares nothing."


def test_the_verdict_does_not_choose_what_loses_accuracy(tmp_path: Path) -> None:
    worse = {"accuracies": [0.99, 0.9, 0.95]}
    assert verdict(lifetimes(tmp_path, run2=worse, run3=worse)) == (
        "Choose lifetime=1: no longer lifetime reached 99.0 % sooner and kept the accuracy "
        "(2 seeds). Faster still, but 4.0 points lower in the end: lifetime=2."
    )


def seeds_of(folder: Path, accuracies: dict[int, list[float | None]], **options: Any) -> Sweep:
    """Return a sweep with a run for each lifetime's last accuracy; None is a run that failed."""
    runs = {}
    for lifetime, values in accuracies.items():
        for seed, value in enumerate(values):
            row = ONCE if lifetime == 1 else TWICE
            run: dict[str, Any] = {"accuracies": [0.5, 0.99, value], **row, **options}
            if value is None:
                run |= {"status": "failed", "error": "loss nan", "accuracies": [0.5]}
            runs[f"{lifetime}-{seed}"] = {"lifetime": lifetime, "seed": seed, **run}
    return read_sweep(write_serial_runs(folder, runs))


def test_a_seed_that_collapsed_is_no_scatter_that_accuracies_may_lie_within(tmp_path: Path) -> None:
    accuracies: dict[int, list[float | None]] = {1: [0.99, 0.99, 0.99], 8: [0.99, 0.99, 0.1]}
    said = verdict(seeds_of(tmp_path / "timed", accuracies))

    assert said.startswith("Choose lifetime=1: ")
    assert said.endswith("lower in the end: lifetime=8 (seed 2 ends at 10.00 %).")
    said = verdict(seeds_of(tmp_path / "untimed", accuracies, start_s=0.0))
    assert "the longest lifetime that keeps it is that of lifetime=1." in said
    assert said.endswith(" lifetime=8 loses accuracy (seed 2 ends at 10.00 %).")


def test_a_seed_of_the_baseline_that_collapsed_excuses_no_loss_and_is_said(tmp_path: Path) -> None:
    sweep = seeds_of(tmp_path / "sweep", {1: [0.99, 0.99, 0.6], 8: [0.8, 0.8, 0.8]})
    said = verdict(sweep)

    assert said.startswith("Choose lifetime=1: ")
    assert said.endswith(" More seeds would tell: those of lifetime=1 end from 60.00 % to 99.00 %.")
    assert "ends at most 2 points below" in describe_sweep(sweep, None)
    steady = seeds_of(tmp_path / "steady", {1: [0.99, 0.99, 0.96], 8: [0.99, 0.99, 0.97]})
    assert "More seeds" not in verdict(steady)


def test_a_seed_that_falls_off_loses_accuracy_though_the_mean_does_not(tmp_path: Path) -> None:
    sweep = seeds_of(tmp_path / "sweep", {1: [0.96, 0.97, 0.97], 8: [0.99, 0.99, 0.94]})

    assert verdict(sweep).startswith("Choose lifetime=1: ")


def test_two_samples_of_a_small_validation_set_are_no_loss(tmp_path: Path) -> None:
    sweep = seeds_of(tmp_path / "sweep", {1: [0.99, 0.99], 2: [0.982, 0.982]})
    assert verdict(sweep).startswith("Choose lifetime=1: ")
    for run in sweep.folder.iterdir():
        log = "INFO 9 samples for training, 200 for validation, 3 classes\n"
        (run / "train.log").write_text(log)

    assert verdict(read_sweep(sweep.folder)).startswith("Choose lifetime=2: ")


def test_a_setting_of_which_a_run_failed_is_not_recommended(tmp_path: Path) -> None:
    sweep = seeds_of(tmp_path / "sweep", {1: [0.99, 0.93, 0.93], 8: [0.99, None, None]})
    said = verdict(sweep)

    assert said.startswith("Choose lifetime=1: ")
    assert " 2 runs of lifetime=8 failed." in said
    assert said.endswith("those of lifetime=1 end from 93.00 % to 99.00 %.")


def test_settings_are_compared_on_the_seeds_that_both_have(tmp_path: Path) -> None:
    sweep = seeds_of(tmp_path / "sweep", {1: [0.99, 0.93, 0.93], 8: [0.99]})
    said = verdict(sweep)

    assert "ends at 99.00 % against 99.00 % (one seed" in said
    assert "; of its runs 2 missing)" in said
    sweep = seeds_of(tmp_path / "lower", {1: [0.99, 0.93, 0.93], 8: [0.96]})
    assert verdict(sweep).startswith("Choose lifetime=1: ")


def test_one_seed_is_no_scatter(tmp_path: Path) -> None:
    runs = {
        "0": {"lifetime": 1, "accuracies": [0.5, 0.9], **ONCE},
        "1": {"lifetime": 2, "accuracies": [0.5, 0.896], **TWICE},
        "2": {"lifetime": 4, "accuracies": [0.5, 0.894], **TWICE},
    }
    said = verdict(read_sweep(write_serial_runs(tmp_path / "sweep", runs)))

    assert said.startswith("Choose lifetime=2: it reaches 89.1 % accuracy in 9 s, lifetime=1 in")
    assert "(one seed, so that its scatter is not known)" in said


def test_jobs_that_overlapped_are_not_compared_by_time(tmp_path: Path) -> None:
    sweep = lifetimes(tmp_path, run1={"start_s": 10.0})
    text = describe_sweep(sweep, None)

    assert sweep.doubts == ["jobs ran at the same time"]
    assert "No times are compared: jobs ran at the same time." in text
    assert "time to" not in text and "warm-up" not in text and "faster" not in text
    assert verdict(sweep).startswith("By accuracy alone, because jobs ran at the same time: ")


def test_jobs_one_right_after_the_other_are_compared(tmp_path: Path) -> None:
    assert lifetimes(tmp_path, run1={"start_s": 29.0}).doubts == []


def test_jobs_on_different_hardware_are_not_compared_by_time(tmp_path: Path) -> None:
    folder = lifetimes(tmp_path).folder
    environment = {"cpu": {"model": "Abacus 10", "num_cores": 4}, "gpu": []}
    (folder / "3" / "environment.json").write_text(json.dumps(environment))

    assert read_sweep(folder).doubts == ["jobs ran on different hardware"]


def test_a_job_that_did_not_end_is_listed_and_not_compared(tmp_path: Path) -> None:
    sweep = lifetimes(
        tmp_path,
        run1={"status": "failed", "error": "OSError: no"},
        run3={"status": "interrupted", "accuracies": []},
    )
    (sweep.folder / "2" / "status.json").write_text("{")
    sweep = read_sweep(sweep.folder)
    text = describe_sweep(sweep, None)

    assert [(s.name, len(s.runs)) for s in sweep.first] == [("lifetime=1", 1)]
    assert "| `1` | failed: OSError: no |" in text
    assert "| `3` | interrupted |" in text
    assert "| `2` | " in text and "cannot be read" in text
    assert verdict(sweep) == (
        "One setting, with one seed: 100.00 % in the end. Of lifetime=2 no run ended."
    )


def test_a_sweep_in_which_nothing_ended_has_a_report(tmp_path: Path) -> None:
    sweep = read_sweep(
        write_serial_runs(tmp_path / "sweep", {"0": {"status": "failed", "accuracies": []}})
    )

    assert describe_sweep(sweep, None).startswith("# sweep\n\n**No job ended.**")
    assert as_csv(sweep).count("\n") == 1


def test_a_sweep_without_evaluations_has_a_report(tmp_path: Path) -> None:
    sweep = read_sweep(write_serial_runs(tmp_path / "sweep", {"0": {"accuracies": [None]}}))

    assert "**No job that ended was evaluated.**" in describe_sweep(sweep, None)
    assert "| `as it is` | 1 | 1 | - | - | 60 |" in describe_sweep(sweep, None)


def test_a_sweep_over_something_else_names_the_best(tmp_path: Path) -> None:
    runs = {
        "0": {"accuracies": [0.9], "overrides": ["optimizer.lr=0.1", "epochs=1"]},
        "1": {"accuracies": [0.95], "overrides": ["optimizer.lr=0.01", "epochs=1"]},
    }
    sweep = read_sweep(write_serial_runs(tmp_path / "sweep", runs))

    assert verdict(sweep) == "lr=0.01 ends with the best accuracy, 95.00 % (one seed)."


def test_what_is_typed_for_all_jobs_or_changes_no_result_names_no_setting() -> None:
    overrides = [
        ["epochs=3", "optimizer.lr=1", "seed=0", "hydra.job.num=0", "cache.keep=true"],
        ["epochs=3", "optimizer.lr=2", "seed=1", "a.x=1", "b.x=2", "+c.y=3"],
        ["epochs=3", "seed=5"],
    ]
    assert setting_names(overrides) == ["lr=1", "lr=2 a.x=1 b.x=2 y=3", "as it is"]


def test_a_plan_says_what_is_compared_with_what(tmp_path: Path) -> None:
    folder = lifetimes(tmp_path).folder
    jobs = [
        {"folder": "0", "section": "at equal epochs", "setting": "lifetime=1"},
        {"folder": "2", "section": "at equal epochs", "setting": "lifetime=2"},
        {"folder": "3", "section": "at equal time", "setting": "lifetime=2"},
        {"folder": "9", "section": "at equal time", "setting": "lifetime=4"},
    ]
    (folder / PLAN).write_text(json.dumps({"jobs": jobs}))
    sweep = read_sweep(folder)
    text = describe_sweep(sweep, None)

    assert list(sweep.sections) == ["at equal epochs", "at equal time"]
    assert sweep.unfinished == [("9", "left no record")]
    assert "## At equal time" in text
    assert text.count("| setting | at equal epochs | at equal time |") == 1
    assert "| `lifetime=2` | 100.00 % after 3 epochs | 99.00 % after 3 epochs |" in text
    assert verdict(sweep).endswith("At equal time it ends at 99.00 % after 3 epochs.")


def write_plan(folder: Path, sections: dict[str, list[str]]) -> None:
    """Write down which runs each section compares; the first letter of a name is the lifetime."""
    jobs = [
        {"folder": place, "section": section, "setting": f"lifetime={place[0]}"}
        for section, names in sections.items()
        for place in names
    ]
    (folder / PLAN).write_text(json.dumps({"jobs": jobs}))


def write_longer(folder: Path, accuracies: list[float], then: list[float]) -> dict[str, list[str]]:
    """Write lifetime 1 and 2 with the same accuracies, and 2 for longer at equal wall time.

    Returns:
        The plan's sections.
    """
    runs = {
        "1": {"lifetime": 1, "accuracies": accuracies, **ONCE},
        "2": {"lifetime": 2, "accuracies": accuracies, **TWICE},
        "2-long": {"lifetime": 2, "accuracies": [*accuracies, *then], **TWICE},
    }
    sections = {"at equal epochs": ["1", "2"], "at equal wall time": ["1", "2-long"]}
    write_plan(write_serial_runs(folder, runs), sections)
    return sections


def test_what_only_pays_at_equal_wall_time_is_mentioned(tmp_path: Path) -> None:
    low, high = {"accuracies": [0.5, 0.8]}, {"accuracies": [0.5, 0.8, 0.95]}
    runs = {
        **{f"1-{seed}": {"lifetime": 1, "seed": seed, "accuracies": [0.5, 0.9]} for seed in (0, 1)},
        **{f"2-{seed}": {"lifetime": 2, "seed": seed, **low} for seed in (0, 1)},
        **{f"2-{seed}-long": {"lifetime": 2, "seed": seed, **high} for seed in (0, 1)},
    }
    folder = write_serial_runs(tmp_path / "sweep", runs)
    places = {"at equal epochs": ["1-0", "1-1", "2-0", "2-1"]}
    places["at equal wall time"] = ["1-0", "1-1", "2-0-long", "2-1-long"]
    write_plan(folder, places)
    said = verdict(read_sweep(folder))

    assert said.startswith("Choose lifetime=1: no longer lifetime reached 89.1 % sooner")
    assert said.endswith(
        "At equal wall time lifetime=2 ends higher, at 95.00 ± 0.00 % after 3 epochs "
        "(lifetime=1: 90.00 ± 0.00 % after 2 epochs)."
    )


def test_an_accuracy_at_equal_wall_time_is_told_with_its_epochs_and_the_baseline(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "sweep"
    sections = write_longer(folder, [0.5, 0.9], then=[0.92, 0.95])
    sweep = read_sweep(folder)

    at_equal_time = (
        "At equal wall time it ends at 95.00 % after 4 epochs (lifetime=1: 90.00 % after 2 epochs)"
    )
    assert verdict(sweep).endswith(f"{at_equal_time}.")
    text = describe_sweep(sweep, None)
    assert "| `lifetime=1` | 90.00 % after 2 epochs | 90.00 % after 2 epochs |" in text
    assert "| `lifetime=2` | 90.00 % after 2 epochs | 95.00 % after 4 epochs |" in text
    write_run(folder / "4-long", [0.5, 0.9, 0.99], lifetime=4, start_s=50_000.0)
    sections["at equal wall time"].append("4-long")
    write_plan(folder, sections)
    higher = f"{at_equal_time}, lifetime=4 at 99.00 % after 3 epochs."
    assert verdict(read_sweep(folder)).endswith(higher)


def test_a_target_reached_only_at_equal_wall_time_is_told_so(tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    write_longer(folder, [0.5, 0.7], then=[0.8, 0.95])
    assert verdict(read_sweep(folder, 0.8)) == (
        "At equal epochs no setting that keeps the accuracy reached 80.00 % with every seed. "
        "At equal wall time lifetime=2 is the first to do so, in 13.5 s, and ends at 95.00 % after "
        "4 epochs (lifetime=1: 70.00 % after 2 epochs)."
    )
    assert "The choice:" not in describe_sweep(read_sweep(folder, 0.8), None)
    assert verdict(read_sweep(folder, 0.99)) == (
        "At equal epochs no setting that keeps the accuracy reached 99.00 % with every seed."
    )


def test_one_epoch_compares_no_lifetimes(tmp_path: Path) -> None:
    runs = {
        "1": {"lifetime": 1, "accuracies": [0.1], **ONCE},
        "2": {"lifetime": 2, "accuracies": [0.2], **TWICE},
    }
    sweep = read_sweep(write_serial_runs(tmp_path / "sweep", runs))

    assert verdict(sweep).startswith("One epoch: every sample is built in it, whatever")
    assert "The choice:" not in describe_sweep(sweep, None)


def test_a_baseline_of_which_no_run_ended_is_named(tmp_path: Path) -> None:
    gone = {"status": "failed"}
    sweep = lifetimes(tmp_path, run0=gone, run1=gone)

    assert verdict(sweep).endswith(
        " Of lifetime=1 no run ended; lifetime=2 is compared with in its place."
    )


def test_other_programs_beside_the_runs_are_mentioned(tmp_path: Path) -> None:
    folder = lifetimes(tmp_path).folder
    jobs = [{"folder": n, "section": "", "setting": f"lifetime={1 + int(n) // 2}"} for n in "0123"]
    plan = {"jobs": jobs, "others": {"0": 0.02, "1": 0.3, "2": 0.11, "9": 0.9}}
    (folder / PLAN).write_text(json.dumps(plan))
    sweep = read_sweep(folder)

    assert sweep.notes == [
        "Other programs worked beside 2 runs, so that their times are longer than on an idle "
        "machine: `1` (30 % of the cores), `2` (11 % of the cores)."
    ]
    assert verdict(sweep).endswith(
        "Beside 2 of these 4 runs other programs took up to 30 % of the cores."
    )
    rows = list(csv.DictReader(io.StringIO(as_csv(sweep))))
    assert [row["others_share"] for row in rows] == ["0.02", "0.3", "0.11", ""]
    assert sweep.notes[0] in describe_sweep(sweep, None)
    plan["others"] = {name: 0.3 for name in "0123"}
    (folder / PLAN).write_text(json.dumps(plan))
    assert verdict(read_sweep(folder)).endswith(
        "Beside all of these 4 runs other programs took up to 30 % of the cores."
    )
    plan["others"] = {"0": 0.02}
    (folder / PLAN).write_text(json.dumps(plan))
    assert read_sweep(folder).notes == []
    plan["others"] = {"1": 0.3}
    (folder / PLAN).write_text(json.dumps(plan))
    (note,) = read_sweep(folder).notes
    assert "beside 1 run, so that its time is longer" in note and note.endswith(
        "machine: `1` (30 % of the cores)."
    )


def test_of_many_runs_beside_which_others_worked_the_worst_are_named(tmp_path: Path) -> None:
    names = [str(number) for number in range(8)]
    folder = write_serial_runs(tmp_path / "sweep", {n: {"seed": int(n)} for n in names})
    jobs = [{"folder": name, "section": "", "setting": "a"} for name in names]
    others = {name: 0.1 + 0.1 * int(name) for name in names}  # of the first not more than a tenth
    (folder / PLAN).write_text(json.dumps({"jobs": jobs, "others": others}))
    (note,) = read_sweep(folder).notes

    assert "beside 7 runs" in note and "machine: `7` (80 % of the cores), `6` (70 %" in note
    assert note.endswith("`3` (40 % of the cores) and 2 more, see sweep.csv.")


def test_a_plan_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    folder = lifetimes(tmp_path).folder
    (folder / PLAN).write_text("[]")
    with pytest.raises(ConfigError, match=rf"^{folder / PLAN} cannot be read: "):
        read_sweep(folder)


@pytest.mark.parametrize(
    "plan", ['{"jobs": [{"folder": "0", "setting": "x"}]}', '{"jobs": [1]}', '{"jobs": 1}',
             '{"jobs": [], "others": 3}', '{"jobs": [], "others": {"0": "much"}}']
)  # fmt: skip
def test_an_odd_plan_is_one_error(tmp_path: Path, plan: str) -> None:
    folder = lifetimes(tmp_path).folder
    (folder / PLAN).write_text(plan)
    with pytest.raises(ConfigError, match=rf"^{folder / PLAN} cannot be read: "):
        read_sweep(folder)


def test_a_plan_without_others_and_a_run_with_an_odd_seed_leave_the_rest(tmp_path: Path) -> None:
    folder = lifetimes(tmp_path, run3={"seed": "abc"}).folder
    (folder / PLAN).write_text(
        json.dumps({"jobs": [{"folder": n, "section": "", "setting": n} for n in "0123"],
                    "others": None})
    )  # fmt: skip
    sweep = read_sweep(folder)

    assert [setting.name for setting in sweep.first] == ["0", "1", "2"]
    ((name, why),) = sweep.unfinished
    assert name == "3" and "cannot be read" in why and "abc" in why


def test_a_table_that_is_cut_or_holds_a_word_is_named_and_not_compared(tmp_path: Path) -> None:
    folder = lifetimes(tmp_path).folder
    cut, word = (folder / name / "metrics.csv" for name in "13")
    cut.write_text(cut.read_text()[:-9])
    word.write_text(word.read_text().replace(",0.9,", ",oops,").replace("0.9\n", "oops\n"))
    sweep = read_sweep(folder)

    assert [len(setting.runs) for setting in sweep.first] == [1, 1]
    (one, why), (other, reason) = sweep.unfinished
    assert (one, why, other) == ("1", "metrics.csv is cut", "3")
    assert reason == "metrics.csv must hold numbers, but got val_accuracy='oops'"


def test_jobs_lie_in_the_folder_or_one_deeper_in_the_order_of_their_numbers(
    tmp_path: Path,
) -> None:
    names = ["10", "9", "inner/0", "inner/1"]
    folder = write_serial_runs(tmp_path / "sweep", {name: {} for name in names})
    write_run(folder / "10" / "nested")  # inside a run, and none of the sweep
    write_run(folder / "a" / "b" / "c")
    (run,) = [setting.runs for setting in read_sweep(folder).first]

    assert {r.directory.relative_to(folder).as_posix() for r in run} == set(names)
    assert len(list(csv.DictReader(io.StringIO(as_csv(read_sweep(folder)))))) == 4


def test_a_folder_without_runs_is_refused(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(ConfigError, match="must be the folder of a run or of a sweep"):
            read_sweep(folder)


def test_the_table_of_runs_has_numbers_as_fractions_and_seconds(tmp_path: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(as_csv(lifetimes(tmp_path)))))

    assert [row["job"] for row in rows] == ["0", "1", "2", "3"]
    assert rows[1] | {"ended": ""} == {
        **{"section": "", "setting": "lifetime=1", "job": "1", "lifetime": "1", "seed": "1"},
        **{"epochs": "3", "last_accuracy": "0.98", "best_accuracy": "1.0", "time_s": "27.0"},
        **{"warmup_s": "2.0", "time_to_target_s": "18.0", "epochs_to_target": "2.0"},
        **{"target": "0.99", "built": "180", "reused": "120", "wait_share": "0.516129"},
        **{"began": "2026-01-02T05:50:45+00:00", "ended": ""},
        **{"num_continued": "0", "others_share": ""},
    }


def killed(folder: Path, *, trained_on: bool) -> None:
    """Make a run one that was killed, and then continued; perhaps with nothing left to train."""
    status = json.loads((folder / "status.json").read_text())
    (session,) = status["sessions"]
    status["sessions"] = [[session[0], None], ["2026-03-01T00:00:00+00:00"] * 2]
    (folder / "status.json").write_text(json.dumps(status))
    if trained_on:
        again = [{"time": "2026-03-01T00:00:00+00:00", "epoch": 1, "step": 4, "changes": {}}]
        (folder / "resumes.yaml").write_text(json.dumps(again))


def test_a_run_that_was_continued_is_named_and_counts_each_of_its_epochs_once(
    tmp_path: Path,
) -> None:
    before = lifetimes(tmp_path)
    killed(before.folder / "0", trained_on=True)
    sweep = read_sweep(before.folder)

    assert len(read_history(sweep.folder / "0").sessions) == 2
    assert sweep.notes == [
        "The time of 1 run adds up what several processes took, without what a kill lost: `0`."
    ]
    assert sweep.doubts == []
    for one, other in zip(before.first, sweep.first, strict=True):
        assert one.time_s == other.time_s and one.built == other.built
        assert one.time_to(0.9) == other.time_to(0.9)
    rows = list(csv.DictReader(io.StringIO(as_csv(sweep))))
    assert [row["num_continued"] for row in rows] == ["1", "0", "0", "0"]
    assert rows[0]["ended"] == "2026-03-01T00:00:00+00:00"


def test_a_run_that_was_killed_when_all_was_trained_is_as_it_would_have_been(
    tmp_path: Path,
) -> None:
    before = lifetimes(tmp_path)
    text = describe_sweep(before, None)
    killed(before.folder / "0", trained_on=False)
    sweep = read_sweep(before.folder)

    assert sweep.notes == [] and sweep.doubts == []
    assert describe_sweep(sweep, None) == text


def test_what_ran_beside_the_part_of_a_run_that_was_killed_is_not_compared(
    tmp_path: Path,
) -> None:
    folder = lifetimes(tmp_path).folder
    status = json.loads((folder / "0" / "status.json").read_text())
    ((began, _),) = status["sessions"]
    status["sessions"] = [[began, "2026-01-02T05:51:00+00:00"], ["2026-03-01T00:00:00+00:00"] * 2]
    (folder / "0" / "status.json").write_text(json.dumps(status))

    assert read_sweep(folder).doubts == ["jobs ran at the same time"]  # as 1 began at 05:50:45
