"""What `compare-profiles` does with runs, baselines and files of forecasts: they go on a board, as they are.

Modules that take a second to import are imported after what is refused in a moment.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pandas as pd

from v8.annexes.comparison.comparing import COMPARED_SERIES, is_run
from v8.annexes.comparison.options import ComparisonOptions
from v8.base.errors import ProfileError, listed
from v8.base.own_files import FORECASTS_COLUMNS
from v8.profile.profile import Profile, profile_names, recorded_profile
from v8.runs.options import contradiction
from v8.runs.run_folder import read_run

if TYPE_CHECKING:
    from v8.api.board import Board

_OF_TRAINING: Final = ("epochs", "full", "tables", "folds", "baseline_profile", "universe")
"""Options that belong to profiles, which are trained."""

_DEFAULT_PROFILE: Final = "frontier"  # divides the candles where no run does


def is_board(names: Sequence[str]) -> bool:
    """Return whether names go on a board: there is a file of forecasts, a baseline, or a run with others.

    Profiles alone, and runs alone, are compared by what they cost, too.

    Raises:
        ProfileError: If a profile, which would be trained, is among the others.
    """
    runs = [name for name in names if is_run(name)]
    others = [name for name in names if name not in runs]
    shipped = profile_names()
    if not (runs and others) and all(name in shipped or not _forecasts(name) for name in others):
        return False
    trained = [name for name in others if not _forecasts(name)]
    if trained:
        rule = "names profiles, which are trained, or what is compared as it is: runs, baselines, files"
        got = f"{listed(trained)} among {len(names)} names"
        raise ProfileError(where="param:profiles", rule=rule, got=got, fix="Leave out one kind")
    return True


def _forecasts(name: str) -> bool:
    """Return whether a name is that of a baseline or of a file of forecasts."""
    from v8.model.baselines.baselines import BASELINES  # noqa: PLC0415 - see the top

    return _is_file(name) or (name in BASELINES and BASELINES[name].is_installed())


def _is_file(name: str) -> bool:
    return Path(name).suffix in (".csv", ".parquet") and Path(name).is_file()


def make_board(options: ComparisonOptions) -> "Board":
    """Put runs, baselines and files of forecasts on one board, and save it.

    Profile, series and source are those of the first run, unless options name others.

    Raises:
        ProfileError: If options belong to profiles that are trained.
        ArgumentError: If the folder holds anything but a board, or what is compared shares no window.
    """
    from v8.api.board import require_board_folder  # noqa: PLC0415 - see the top
    from v8.api.scores import evaluate  # noqa: PLC0415

    for name in _OF_TRAINING:
        if getattr(options, name):
            rule = "is for profiles, which are trained; a board compares what is there"
            raise contradiction(f"param:{name}", listed(options.profiles), rule)
    require_board_folder(options.out, "param:out")
    runs = [name for name in options.profiles if is_run(name)]
    profile: Profile | str = _DEFAULT_PROFILE
    series = list(options.series)
    source = options.source
    if runs:
        record = read_run(Path(runs[0]))
        profile = recorded_profile(record.profile, where=f"profile of {runs[0]}")
        series = series or list(record.done)
        is_default = source == ComparisonOptions.model_fields["source"].default
        source = record.source if is_default and not options.data_dir else source
    board = evaluate(
        {name: _method(name) for name in options.profiles},
        options.data_dir or source,
        profile,
        series=series or list(COMPARED_SERIES),
    )
    board.save(options.out)
    return board


def _method(name: str) -> Any:
    """Return what `evaluate` takes: a file of forecasts as a frame, anything else as it is called."""
    if not _is_file(name):
        return name
    frame = pd.read_parquet(name) if name.endswith(".parquet") else pd.read_csv(name)
    if {*FORECASTS_COLUMNS} <= {*frame}:  # as the command `export` writes it
        from v8.api.evaluations import long_forecasts  # noqa: PLC0415 - see the top

        return long_forecasts(frame, None)
    return frame
