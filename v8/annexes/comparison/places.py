"""What a comparison may name: profiles, run folders, baselines and files of forecasts."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from v8.base.errors import ProfileError, listed
from v8.model.baselines.baselines import BASELINES
from v8.profile.profile import load_profile, profile_names
from v8.runs.run_folder import RUN_FILE, read_run

_FORECAST_ENDINGS: Final = (".csv", ".parquet")  # of files of forecasts


def is_run(name: str | Path) -> bool:
    """Return whether a name is that of a run folder."""
    return (Path(name) / RUN_FILE).is_file()


def require_places(names: Sequence[str]) -> None:
    """Refuse folders that are no runs, and files that are missing, before they are taken for profiles.

    Raises:
        ArtifactError: For a folder that is not there, or is that of a back-test or of several runs.
        ProfileError: For a file of forecasts that is not there.
    """
    for name in names:
        path = Path(name)
        is_folder_name = len(path.parts) > 1 and not path.suffix and not path.is_file()
        if path.suffix in _FORECAST_ENDINGS and not path.is_file():
            raise ProfileError(
                where="param:profiles",
                rule="names files of forecasts that are there",
                got=f"no file {name}",
                fix="Check the path",
            )
        if name not in profile_names() and not is_run(name) and (path.is_dir() or is_folder_name):
            read_run(path)  # raises what is there in place of a run


def is_board(names: Sequence[str]) -> bool:
    """Return whether names go on a board: there is a file of forecasts, a baseline, or a run with others.

    Profiles alone, and runs alone, are compared by what they cost, too.

    Raises:
        ProfileError: If a profile, which would be trained, is among the others, or a file is not there.
        ArtifactError: If a folder is named that is no run.
    """
    require_places(names)
    runs = [name for name in names if is_run(name)]
    others = [name for name in names if name not in runs]
    shipped = profile_names()
    if not (runs and others) and all(name in shipped or not _forecasts(name) for name in others):
        return False
    require_no_profile([name for name in others if not _forecasts(name)], names)
    return True


def require_no_profile(profiles: Sequence[str], names: Sequence[str]) -> None:
    """Refuse profiles among names of what is compared as it is.

    Raises:
        ProfileError: If there are any; of a misspelt one, that there is none of its name.
    """
    for name in profiles:
        load_profile(name)
    if profiles:
        raise ProfileError(
            where="param:profiles",
            rule="names profiles, which are trained, or what is compared as it is: runs, baselines, files",
            got=f"{listed(profiles)} among {len(names)} names",
            fix="Leave out one kind",
        )


def _forecasts(name: str) -> bool:
    """Return whether a name is that of a baseline or of a file of forecasts."""
    return is_forecasts_file(name) or (name in BASELINES and BASELINES[name].is_installed())


def is_forecasts_file(name: str) -> bool:
    """Return whether a name is that of a file of forecasts."""
    return Path(name).suffix in _FORECAST_ENDINGS and Path(name).is_file()
