"""What the entries of a schedule must be, of torch's schedulers and of this project's.

torch takes a text for a list of milestones, and a rate below 0, without a word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

from training.checks import check, is_finite
from training.sections import Node

_HOMES = ("torch.optim.", "training.schedule.")
_SPANS = ("milestones", "total_steps", "total_iters")  # in steps of the schedule


def check_entries(node: Node, place: str) -> None:
    """Refuse values that a scheduler takes, and that make no sense.

    Args:
        node: of one scheduler; of one of the user's own nothing is known.
        place: where it stands in the config.

    Raises:
        ConfigError: a value breaks its rule.
    """
    if not str(node.get("_target_")).startswith(_HOMES):
        return
    for name, value in node.items():
        rule, holds = _RULES.get(name, ("a finite number", _is_no_odd_float))
        if name == "factor" and str(node["_target_"]).endswith("Plateau"):
            rule, holds = "a number between 0 and 1, itself neither", _is_between
        of_torch = str(node["_target_"]).startswith(_HOMES[0])
        by_default = name == "total_steps" and value is None and of_torch  # from others, or unknown
        check(f"{place}.{name}", value, by_default or holds(value), rule)


def behind_end(node: Node, total: int, unit: str) -> Iterator[str]:
    """Yield a line for each entry that names a step which the run does not reach.

    Args:
        node: of one scheduler that has no others inside it.
        total: how often it is stepped in the run.
        unit: of its steps, in the plural.
    """
    for name in _SPANS:
        value = node.get(name)
        steps = value if isinstance(value, list) else [value]
        behind = [step for step in steps if isinstance(step, int) and step > total]
        if behind:
            said = ", ".join(map(str, behind))
            yield (
                f"schedule.{name}: {said} lies behind the last of {total} {unit}: the rate never "
                "gets there"
            )


def _is_no_odd_float(value: Any) -> bool:
    return not isinstance(value, float) or is_finite(value)


def _is_between(value: Any) -> bool:
    return is_finite(value) and 0 < value < 1


def _is_share(value: Any) -> bool:
    return is_finite(value) and 0 <= value <= 1


def _is_positive(value: Any) -> bool:
    return is_finite(value) and value > 0


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_length(value: Any) -> bool:
    return type(value) is int and value >= 1


def _is_rate(value: Any) -> bool:
    rates = value if isinstance(value, list) and value else [value]
    return all(is_finite(rate) and rate >= 0 for rate in rates)


def _are_milestones(value: Any) -> bool:
    if not isinstance(value, list) or not all(map(_is_count, value)):
        return False
    return all(earlier <= later for earlier, later in pairwise(value))


_RULES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(("max_lr", "min_lr", "base_lr", "eta_min"), ("a rate from 0 up", _is_rate)),
    **dict.fromkeys(
        ("warmup", "start_factor", "min_factor", "pct_start", "factor"),
        ("a share, a number from 0 to 1", _is_share),
    ),
    **dict.fromkeys(("patience", "cooldown"), ("an integer from 0 up", _is_count)),
    **dict.fromkeys(("total_steps", "step_size"), ("a positive integer", _is_length)),
    "total_iters": ("an integer from 0 up", _is_count),
    "gamma": ("a positive number", _is_positive),
    "milestones": ("a list of steps that ascend, like [8,12]", _are_milestones),
}
