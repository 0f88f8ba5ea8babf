"""Class folders of images: which files count, as which class, and what happens to bad ones."""

from __future__ import annotations

import os
import pickle
import re
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hydra import compose, initialize_config_dir
from pictures import class_folders, encoded, picture, write
from runs import begin, compose_config, load, make_config, prepare, resume, train, without_times
from torchvision.transforms import v2

from reuseloader import ReusePolicy, Substitute, seeded
from training.build import build_image
from training.config import ConfigError
from training.curriculum import Steps, expand
from training.data.image_folder import ImageFolder
from training.data.images import UnreadableError, decode
from training.targets import PROJECT

PLAIN: Any = Steps({0: v2.Identity()})


def names(source: ImageFolder) -> list[str]:
    return [os.fsdecode(name) for name in source._files]


def split(root: Path) -> Path:
    class_folders(root / "train", cat=2, dog=3)
    class_folders(root / "val", cat=1, dog=1)
    return root


def both(root: Path, **options: Any) -> list[ImageFolder]:
    return [ImageFolder(str(root), split, **options) for split in ("train", "val")]


def test_every_folder_is_a_class_and_every_image_below_it_counts(tmp_path: Path) -> None:
    write(tmp_path / "train" / "b" / "1.PNG")
    write(tmp_path / "train" / "b" / "deep" / "er" / "2.JPeG")
    write(tmp_path / "train" / "b" / "ü.webp")
    write(tmp_path / "train" / "a" / "3.bmp")
    (tmp_path / "train" / "a" / "notes.txt").write_text("no image")
    (tmp_path / "train" / "a" / "png").write_text("no image")
    write(tmp_path / "train" / "above.png")
    write(tmp_path / "val" / "b" / "4.gif")
    train, val = both(tmp_path)
    assert names(train) == ["a/3.bmp", "b/1.PNG", "b/deep/er/2.JPeG", "b/ü.webp"]
    assert train.labels.tolist() == [0, 1, 1, 1]
    assert train.classes == val.classes == ["a", "b"]
    assert (names(val), val.labels.tolist()) == (["b/4.gif"], [1])
    item = train[2]
    assert item.keys() == {"image", "label"}
    data = (tmp_path / "train" / "b" / "deep" / "er" / "2.JPeG").read_bytes()
    assert torch.equal(item["image"], decode(data))
    assert (type(item["label"]), item["label"]) == (int, 1)


def test_hidden_folders_are_no_class_and_hidden_files_no_image(tmp_path: Path) -> None:
    root = split(tmp_path)
    write(root / "train" / ".ipynb_checkpoints" / "1.png")
    write(root / "train" / "cat" / ".thumbnails" / "1.png")
    write(root / "train" / "cat" / "._1.png")
    write(root / "val" / ".cache" / "1.png")
    write(root / ".git" / "1.png")
    train, val = both(root)
    assert train.classes == val.classes == ["cat", "dog"]
    assert names(train) == ["cat/0.png", "cat/1.png", "dog/0.png", "dog/1.png", "dog/2.png"]
    assert names(val) == ["cat/0.png", "dog/0.png"]


def test_validation_uses_the_class_map_of_training(tmp_path: Path) -> None:
    class_folders(tmp_path / "train", ant=1, bee=1, cow=1)
    class_folders(tmp_path / "val", cow=2)
    val = ImageFolder(str(tmp_path), "val")
    assert val.classes == ["ant", "bee", "cow"]
    assert val.labels.tolist() == [2, 2]
    class_folders(tmp_path / "val", yak=1)
    with pytest.raises(ValueError, match=r"val/yak must be a class of .*train, but is none"):
        ImageFolder(str(tmp_path), "val")


def test_a_folder_that_is_not_split_is_split_by_the_names_alone(tmp_path: Path) -> None:
    root = class_folders(tmp_path / "a", cat=10, dog=5, owl=1)
    train, val = both(root)
    assert [list(val.labels).count(label) for label in range(3)] == [2, 1, 0]
    assert sorted(names(train) + names(val)) == sorted(
        str(path.relative_to(root)) for path in root.rglob("*.png")
    )
    assert train.classes == val.classes == ["cat", "dog", "owl"]
    shutil.copytree(root, tmp_path / "b")
    for file in (tmp_path / "b").rglob("*.png"):
        os.utime(file, (1, 1))
    assert [names(s) for s in both(tmp_path / "b")] == [names(train), names(val)]
    half = ImageFolder(str(root), "val", val_share=0.5)
    assert len(half) == 5 + 2
    assert set(names(val)) <= set(names(half))


def test_a_file_more_moves_no_more_than_one_other_to_the_other_split(tmp_path: Path) -> None:
    root = class_folders(tmp_path, cat=20)
    for number in range(20, 30):
        before = set(names(both(root)[1]))
        write(root / "cat" / f"{number}.png")
        assert len(before - set(names(both(root)[1]))) <= 1


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    root = class_folders(tmp_path, train=3, plane=3)
    assert ImageFolder(str(root), "train").classes == ["plane", "train"]


def test_one_class_may_be_called_train_and_train_alone_be_divided(tmp_path: Path) -> None:
    assert ImageFolder(str(class_folders(tmp_path / "a", train=3)), "train").classes == ["train"]
    class_folders(tmp_path / "b" / "train", cat=5, dog=5)
    train, val = both(tmp_path / "b")
    assert (train.classes, len(train), len(val)) == (["cat", "dog"], 8, 2)


def test_train_and_val_are_the_split_whatever_lies_beside(tmp_path: Path) -> None:
    root = split(tmp_path)
    class_folders(root, raw=2)
    class_folders(root / "test", cat=2)
    train, val = both(root)
    assert (train.classes, len(train), len(val)) == (["cat", "dog"], 5, 2)


@pytest.mark.parametrize(
    "names",
    [
        *(("train", "valid"), ("train", "validation"), ("training", "val"), ("Train", "Val")),
        *(("train", "test"), ("TRAIN", "eval"), ("training", "testing")),
    ],
)
def test_a_split_under_other_names_is_refused_with_the_remedy(
    names: tuple[str, str], tmp_path: Path
) -> None:
    for name in names:
        class_folders(tmp_path / name, cat=2, dog=2)
    class_folders(tmp_path, plane=1)
    said = f"root must call the folders of a split train and val, but got root={tmp_path} with "
    with pytest.raises(ValueError, match=rf"^{re.escape(said)}{', '.join(names)}: rename them"):
        ImageFolder(str(tmp_path), "train")


def test_links_are_followed_and_circles_end(tmp_path: Path) -> None:
    root = split(tmp_path / "root")
    write(tmp_path / "elsewhere" / "1.png")
    (root / "train" / "cat" / "linked").symlink_to(tmp_path / "elsewhere")
    (root / "train" / "cat" / "circle").symlink_to(root / "train" / "cat")
    assert names(both(root)[0])[:3] == ["cat/0.png", "cat/1.png", "cat/linked/1.png"]


def test_what_is_no_regular_file_is_no_image(tmp_path: Path) -> None:
    root = split(tmp_path)
    os.mkfifo(root / "train" / "cat" / "pipe.jpg")
    (root / "train" / "cat" / "link.png").symlink_to(root / "train" / "cat" / "pipe.jpg")
    (root / "train" / "dog" / "null.png").symlink_to(os.devnull)
    (root / "train" / "dog" / "good.png").symlink_to(root / "train" / "cat" / "0.png")
    train = both(root)[0]
    assert names(train)[:3] == ["cat/0.png", "cat/1.png", "dog/0.png"]
    assert names(train)[3:] == ["dog/1.png", "dog/2.png", "dog/good.png"]
    assert len(train.identity()) == 64


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"split": "test"}, "split must be train or val, but got split='test'"),
        ({"on_error": "ignore"}, "on_error must be raise or skip, but got on_error='ignore'"),
        ({"val_share": 1}, "val_share must be between 0 and 1, but got val_share=1"),
        ({"root": "/nope"}, "root must be a folder, but got root=/nope"),
    ],
)
def test_a_wrong_argument_is_named(options: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        ImageFolder(**{"root": str(split(tmp_path)), "split": "train", **options})
    assert str(caught.value) == said


def test_a_folder_without_classes_or_a_class_without_images_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="root must hold a folder for each class"):
        ImageFolder(str(tmp_path), "train")
    root = split(tmp_path / "a")
    (root / "train" / "empty").mkdir()
    with pytest.raises(ValueError, match="train/empty must hold an image, but it holds none"):
        ImageFolder(str(root), "train")


def test_a_pickled_copy_is_equal(tmp_path: Path) -> None:
    source = both(split(tmp_path))[0]
    copy = pickle.loads(pickle.dumps(source))
    assert (len(copy), copy.classes, copy.identity()) == (5, source.classes, source.identity())
    assert all(torch.equal(copy[i]["image"], source[i]["image"]) for i in range(5))


def test_moving_and_touching_leave_the_identity_as_it_is(tmp_path: Path) -> None:
    root = split(tmp_path / "a")
    before = [source.identity() for source in both(root)]
    assert len(set(before)) == 2
    shutil.move(root, tmp_path / "b")
    for file in (tmp_path / "b").rglob("*"):
        os.utime(file, (7, 7))
    (tmp_path / "b" / "train" / "cat" / "notes.txt").write_text("no image")
    assert [source.identity() for source in both(tmp_path / "b")] == before


def test_adding_replacing_and_reordering_change_the_identity(tmp_path: Path) -> None:
    root = split(tmp_path)
    cat = root / "train" / "cat"
    marks = [ImageFolder(str(root), "train").identity()]

    def note() -> None:
        marks.append(ImageFolder(str(root), "train").identity())

    write(cat / "-first.png")
    note()
    (cat / "-first.png").rename(cat / "last.png")
    note()
    old = (cat / "0.png").read_bytes()
    (cat / "0.png").write_bytes(old[:-1] + b"!")  # as long as before, and as old
    os.utime(cat / "0.png", (7, 7))
    note()
    (cat / "0.png").write_bytes((cat / "1.png").read_bytes())
    (cat / "1.png").write_bytes(old)
    note()
    (root / "train" / "cat").rename(root / "train" / "puma")
    note()
    assert len(set(marks)) == len(marks)


def test_of_a_large_file_begin_middle_and_end_count(tmp_path: Path) -> None:
    root = class_folders(tmp_path, cat=1)
    file = root / "cat" / "0.png"
    marks = set()
    for place in (None, 0, 100_000, 199_999):
        content = bytearray(200_000)
        if place is not None:
            content[place] = 1
        file.write_bytes(content)
        marks.add(ImageFolder(str(root), "train").identity())
    file.write_bytes(bytes(200_001))
    marks.add(ImageFolder(str(root), "train").identity())
    assert len(marks) == 5


def broken(root: Path) -> Path:
    """Six images, of which the second is cut, the third is missing, and the last is empty."""
    class_folders(root / "train", cat=4, dog=2)
    class_folders(root / "val", cat=1)
    cat = root / "train" / "cat"
    (cat / "1.png").write_bytes(encoded(picture(), "PNG")[:60])
    (cat / "2.png").unlink()
    (cat / "2.png").symlink_to(root / "gone.png")
    (root / "train" / "dog" / "1.png").write_bytes(b"")
    return root


@pytest.mark.parametrize(
    ("index", "name", "why"),
    [
        (1, "cat/1.png", "no whole image: "),
        (2, "cat/2.png", "No such file"),
        (5, "dog/1.png", "no whole image: "),
    ],
)
def test_an_unreadable_file_is_named(index: int, name: str, why: str, tmp_path: Path) -> None:
    root = broken(tmp_path)
    source = ImageFolder(str(root), "train")
    assert len(source.identity()) == 64
    with pytest.raises(UnreadableError, match=why) as caught:
        source[index]
    assert str(caught.value).startswith(f"{root / 'train' / name} cannot be read: ")


def test_where_files_are_skipped_the_next_one_stands_in(tmp_path: Path) -> None:
    root = broken(tmp_path)
    source = ImageFolder(str(root), "train", on_error="skip")
    stands_in = {1: 3, 2: 3, 5: 0}
    for index in range(6):
        item, other = source[index], source[stands_in.get(index, index)]
        assert torch.equal(item["image"], other["image"])
        assert item["label"] == other["label"]
        assert item["valid"] == (index not in stands_in)
        assert ("skipped" in item) == (index in stands_in)
    assert source[5]["skipped"].startswith(f"{root / 'train' / 'dog' / '1.png'} cannot be read: ")


def test_a_stand_in_becomes_no_stored_sample(tmp_path: Path) -> None:
    source = ImageFolder(str(broken(tmp_path)), "train", on_error="skip")
    good, bad = (
        build_image(ReusePolicy(2).key(i, 0), source=source, transforms=PLAIN) for i in (0, 1)
    )
    assert good.keys() == {"image", "label", "valid"}
    assert isinstance(bad, Substitute)
    assert bad.sample.keys() == {"image", "label", "valid"}
    assert (good["valid"], bad.sample["valid"]) == (True, False)


def test_where_no_file_can_be_read_that_is_said(tmp_path: Path) -> None:
    root = class_folders(tmp_path, cat=2)
    for file in root.rglob("*.png"):
        file.write_bytes(b"")
    with pytest.raises(UnreadableError, match="none of the 1 samples can be read: /"):
        ImageFolder(str(root), "train", on_error="skip")[0]


def overrides(root: Path) -> tuple[str, ...]:
    augment = "augment=photos"
    return ("data=image_folder", f"data.root={root}", "data.image_size=16", augment, "lifetime=2")


def test_a_run_trains_on_it_and_finds_the_number_of_classes(tmp_path: Path) -> None:
    root = class_folders(tmp_path / "photos", cat=8, dog=7, owl=5)
    table = train(tmp_path / "run", *overrides(root))
    assert [(row["built"], row["reused"]) for row in table] == [(16, 0), (8, 8)]
    recorded = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert recorded["data"]["num_classes"] == 3
    assert recorded["data"]["train"]["root"] == str(root)


def test_a_run_goes_on_where_its_data_was_moved_to_and_not_with_other_data(tmp_path: Path) -> None:
    root = class_folders(tmp_path / "photos", cat=8, dog=7)
    whole = train(tmp_path / "whole", *overrides(root), "epochs=2", "schedule=constant")
    first = (*overrides(root), "schedule=constant", "epochs=1", "cache.keep=true")
    train(tmp_path / "run", *first)
    moved = root.rename(tmp_path / "elsewhere")
    class_folders(root, cat=8, dog=7)
    write(root / "cat" / "0.png", picture(999))
    again = (*first, "epochs=2")
    with pytest.raises(ConfigError, match=r"^data\.(train|val) must hold what it held when the "):
        resume(tmp_path / "run", *again)
    table = resume(tmp_path / "run", *again, f"data.root={moved}")
    assert without_times(table) == without_times(whole)  # the samples stored before are used
    recorded = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert recorded["data"]["train"]["root"] == str(moved)


def test_training_crops_the_whole_image_and_validation_its_middle(tmp_path: Path) -> None:
    root = class_folders(tmp_path / "photos", cat=8, dog=7)
    with begin(tmp_path / "run", *overrides(root)) as run:
        _, loaders, _ = prepare(run)
        whole = ImageFolder(str(root), "train")[0]["image"]
        sample = loaders.build(loaders.train.policy.key(0, 0))
        assert sample["image"].shape == (3, 16, 16)
        crop = v2.RandomResizedCrop(16, scale=(0.25, 1.0), antialias=True)
        with seeded(loaders.train.policy.key(0, 0).seed):
            assert torch.equal(sample["image"], crop(whole).as_subclass(torch.Tensor))
        val = ImageFolder(str(root), "val")
        middle = v2.Compose([v2.Resize(16, antialias=True), v2.CenterCrop(16)])
        expected = [middle(val[i]["image"]).as_subclass(torch.Tensor) for i in range(len(val))]
        found = torch.cat([batch["image"] for batch in loaders.val])
        assert torch.equal(found, torch.stack(expected))


@pytest.mark.parametrize("augment", ["none", "photos"])
def test_training_and_validation_share_no_transform(augment: str, tmp_path: Path) -> None:
    root = class_folders(tmp_path / "photos", cat=8, dog=7)
    with begin(tmp_path / "run", *overrides(root), f"augment={augment}") as run:
        _, loaders, _ = prepare(run)
        first, second = (
            loader._dataset._build._build._stage.keywords["transforms"].at(0).transforms
            for loader in (loaders.train, loaders.val)
        )
    assert len(second) == 2
    assert {id(t) for t in first}.isdisjoint(id(t) for t in second)


def test_without_augmentation_training_is_prepared_as_validation_is(tmp_path: Path) -> None:
    root = class_folders(tmp_path / "photos", cat=8, dog=7)
    with begin(tmp_path / "run", *overrides(root), "augment=none") as run:
        _, loaders, _ = prepare(run)
        middle = v2.Compose([v2.Resize(16, antialias=True), v2.CenterCrop(16)])
        whole = ImageFolder(str(root), "train")[0]["image"]
        sample = loaders.build(loaders.train.policy.key(0, 0))
        assert torch.equal(sample["image"], middle(whole).as_subclass(torch.Tensor))


def test_a_share_of_its_own_for_validation_is_refused(tmp_path: Path) -> None:
    root = class_folders(tmp_path / "photos", cat=8, dog=7)
    with (
        pytest.raises(
            ConfigError,
            match=r"^data\.val\.val_share must be data\.train\.val_share, 0\.2, but got ",
        ),
        begin(tmp_path / "run", *overrides(root), "data.val.val_share=0.5") as run,
    ):
        prepare(run)


def spoil(root: Path, split: str) -> str:
    """Cut a file short that is read in this split; return its path."""
    source = ImageFolder(str(root), split)
    path = source.root / names(source)[1]
    path.write_bytes(path.read_bytes()[:50])
    return str(path)


def test_an_unreadable_file_ends_the_run_with_its_path_and_index(tmp_path: Path) -> None:
    root = class_folders(tmp_path / "photos", cat=8, dog=7)
    path = spoil(root, "train")
    with pytest.raises(ConfigError, match=rf"^{path} cannot be read: no whole .* of index=1, ep"):
        train(tmp_path / "run", *overrides(root))
    assert not (tmp_path / "run" / "cache" / "train" / "00000001.pt").exists()


def test_skipped_files_are_counted_and_left_out_of_the_evaluation(tmp_path: Path) -> None:
    root = class_folders(tmp_path / "photos", cat=8, dog=7)
    paths = [spoil(root, "train"), spoil(root, "val")]
    keep = ("data.on_error=skip", "cache.keep=true")
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # the run writes them down
        table = train(tmp_path / "run", *overrides(root), *keep)
    assert [row["built"] + row["reused"] for row in table] == [12, 12]
    said = (tmp_path / "run" / "train.log").read_text()
    for path in paths:
        assert f"{path} cannot be read: no whole image" in said
    for what in ("training", "validation"):
        assert said.count(f"1 of the samples for {what} could not be read and were skipped") == 2
    for name in ("train", "val"):
        stored = {file.stem for file in (tmp_path / "run" / "cache" / name).glob("*.pt")}
        assert "00000001" not in stored
        assert "00000002" in stored
    confusion = load(tmp_path / "run")["best"]["confusion"]
    assert int(confusion.sum()) == 2  # of 3 images for validation


def test_a_class_map_that_differs_between_the_nodes_is_refused(tmp_path: Path) -> None:
    class_folders(tmp_path / "a", cat=2, dog=2)
    class_folders(tmp_path / "b", cow=2, dog=2)
    with pytest.raises(ConfigError, match=r"data\.val must have the classes of data\.train"):
        train(tmp_path / "run", *overrides(tmp_path / "a"), f"data.val.root={tmp_path / 'b'}")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ((), "data.root must be given, for example on the command line"),
        (("data.root=/nope",), "data.root must be a folder, but got data.root=/nope"),
        (("data.root=/", "data.on_error=x"), "data.on_error must be raise or skip, but got"),
        (
            ("data.root=/", "data.image_size=0"),
            "data.image_size must be an integer from 1 to 32768",
        ),
    ],
)
def test_a_mistake_in_the_config_is_named(wrong: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(said)}"):
        make_config("data=image_folder", *wrong)


def test_the_flag_of_a_preset_is_no_parameter_of_a_curriculum(tmp_path: Path) -> None:
    composed = compose_config("data=image_folder", f"data.root={class_folders(tmp_path, a=1)}")
    with pytest.raises(ConfigError, match="replaces_prepare is no parameter of augment"):
        expand(composed, {0: {"replaces_prepare": False}})


def test_the_data_chooses_the_augmentation_and_the_command_line_has_the_last_word() -> None:
    def chosen(*words: str) -> list[str]:
        with initialize_config_dir(str(PROJECT / "conf"), version_base="1.3"):
            return list(compose("config", overrides=list(words)).augment.stored)

    assert chosen("data=image_folder") == ["crop"]
    assert chosen("data=cifar10") == ["randaugment"]
    assert chosen("data=image_folder", "augment=none") == []
    assert chosen("augment=none", "data=image_folder") == []
    assert chosen() == ["elastic", "perspective", "affine", "colour", "blur"]
