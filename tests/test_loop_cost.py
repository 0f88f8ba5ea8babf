"""The benchmark of the loop runs, and compares two loops that do the same."""

from __future__ import annotations

import re

import pytest
import torch

from benchmarks import loop

SMALL = ("device=cpu", "num_workers=0", "data.train.limit=64", "data.val.limit=40")


def test_the_template_and_the_bare_loop_come_to_the_same_weights(
    capsys: pytest.CaptureFixture[str],
) -> None:
    # Without decay: of norms and biases the template spares it.
    models = loop.main(["--quick", *SMALL, "optimizer.weight_decay=0.0", "batch_size=8"])

    bare, template = (model.state_dict() for model in models.values())
    assert int(bare["1.num_batches_tracked"]) == 3 * 3  # three turns, of which one is not timed
    assert bare.keys() == template.keys()
    for name, value in bare.items():
        torch.testing.assert_close(value, template[name], msg=name)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["wall", "CPU", "2"]
    assert all(re.search(r"bare \d+\.\d{3} ms  template \d+\.\d{3} ms", line) for line in lines[:2])
