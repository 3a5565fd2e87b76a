"""The reference of each task: the baseline that is compared with every model, whatever else its run holds.

`configs/references.yaml` names them, and says how they were chosen.
"""

from functools import cache

from v8.base.reading import read_yaml
from v8.profile.profile import config_path


def reference_baseline(task: str) -> str | None:
    """Return the name of the reference of a task; None for a task of a plug-in, which has none.

    >>> reference_baseline("ohlc")
    'log_har_clock'
    """
    return _references().get(task)


@cache
def _references() -> dict[str, str]:
    return read_yaml(config_path("references"))
