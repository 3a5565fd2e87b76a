"""Names that files of format 1 use, and what they are called now; the one place where the old names live.

v8 1.0 wrote run folders, metadata, ledgers and back-tests with names of its own. They are still read: whoever
reads a file of a former format hands what JSON holds to `with_current_names` and goes on with the result.
What is written has the new names and a raised format number. Profiles never changed: their digests show
models apart, so what stands under `profile` is left as it is.
"""

from collections.abc import Mapping
from typing import Any, Final

KEYS: Final[Mapping[str, str]] = {
    "begun_from": "started_from",
    "crps_multiple": "relative_crps",
    "crps_multiples": "relative_crps",
    "is_familiar": "is_in_range",
    "is_judged": "is_evaluated",
    "judge": "evaluate",
    "judged": "evaluated",
    "judged_from": "evaluated_from",
    "judged_until": "evaluated_until",
    "judgement": "evaluation",
    "multiple": "relative_mae",
    "multiple_of_best": "relative_mae_to_best",
    "multiple_of_naive": "relative_mae",
    "multiples": "relative_mae",
    "multiples_of_best": "relative_mae_to_best",
    "num_flat_truth": "num_flat_actual",
    "outside": "out_of_range_features",
    "roll_forward": "naive",
    "seen": "value_range",
    "seen_until": "trained_until",
    "seen_until_s": "trained_until_s",
    "truth": "actual",
    "truth_digest": "actual_digest",
}
"""Keys of JSON objects and columns of tables: former name -> current name."""

VALUES: Final[Mapping[str, str]] = {
    "roll_forward": "naive",
    "log(x / roll-forward forecast) / scale": "log(x / naive forecast) / scale",
    "(x - roll-forward forecast) / (recent range, times last close for prices) / scale": (
        "(x - naive forecast) / (recent range, times last close for prices) / scale"
    ),
}
"""Texts that stand for something: former -> current."""

_UNCHANGED: Final = frozenset({"profile"})
"""Keys below which users' own names stand."""


def with_current_names(content: Any) -> Any:
    """Rename keys and values of a JSON document of a former format, at any depth.

    Args:
        content: What JSON holds: objects, lists, texts, numbers, true, false and None.

    Returns:
        The same with current names; what stands under `profile` is not touched.

    >>> with_current_names({"judgement": {"roll_forward": 1.0}, "profile": {"truth": "mine"}})
    {'evaluation': {'naive': 1.0}, 'profile': {'truth': 'mine'}}
    """
    if isinstance(content, dict):
        return {
            KEYS.get(key, key): value if key in _UNCHANGED else with_current_names(value)
            for key, value in content.items()
        }
    if isinstance(content, list):
        return [with_current_names(value) for value in content]
    return VALUES.get(content, content) if isinstance(content, str) else content
