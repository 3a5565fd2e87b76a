"""Options of the core's commands alone: flags of plug-ins and of annexes, tables and pictures to write."""

import inspect
import pkgutil
import shlex
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from typer import Option

from v8.base import annexes
from v8.base.errors import ProfileError
from v8.base.registry import load_plugins
from v8.base.storage import require_own
from v8.cli.shared import no_folder, require_folder_of, require_one_of

PluginOption = Annotated[list[str] | None, Option(metavar="FILE.py", help="A plug-in; repeat for more.")]


def with_plugins(work: Callable[..., None]) -> Callable[..., None]:
    """Return a command with the additional flag `--plugin`; the plug-ins are loaded before it starts."""

    @wraps(work)
    def call(*, plugin: list[str] | None, **options: Any) -> None:
        load_plugins(plugin or ())
        work(**options)

    signature = inspect.signature(work)
    plugin_parameter = inspect.Parameter(
        "plugin", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=PluginOption
    )
    # Typer reads the flags of a command from its signature.
    parameters = [*signature.parameters.values(), plugin_parameter]
    vars(call)["__signature__"] = signature.replace(parameters=parameters)
    return call


AddedFunctions: TypeAlias = Sequence[Callable[..., Any]]
"""The functions of those flags of annexes that are given."""


def with_added_flags(work: Callable[..., None]) -> Callable[..., None]:
    """Return a command of the core with the flags of annexes; it gets their functions as `added`."""
    flags = annexes.flags(work.__name__)

    @wraps(work)
    def call(**options: Any) -> None:
        given = [flag.call for name, flag in flags.items() if options.pop(name)]
        work(added=[pkgutil.resolve_name(function) for function in given], **options)

    signature = inspect.signature(work)
    parameters = [each for each in signature.parameters.values() if each.name != "added"]
    for name, flag in flags.items():
        annotation = Annotated[bool, Option(f"--{name}", help=flag.help)]
        parameters.append(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=annotation)
        )
    vars(call)["__signature__"] = signature.replace(parameters=parameters)
    return call


def table_form(flag: str, file: Path, form: str | None = None, *, is_overwriting: bool) -> str:
    """Return the format of a table to write, "parquet" or "csv": as requested, or by its file's suffix.

    Args:
        flag: Names the file in errors.
        file: To be written.
        form: The requested format, if there is one.
        is_overwriting: Whether a file that v8 did not write may be replaced.

    Raises:
        ProfileError: If there is no such format, the file's folder does not exist, or the file exists, is
            not of v8 and may not be replaced.
    """
    require_folder_of(flag, file)
    chosen = form or file.suffix.removeprefix(".")
    require_one_of("--format" if form else f"{flag}, its ending", chosen, ("parquet", "csv"))
    require_own(flag, file, is_overwriting=is_overwriting)
    return chosen


def require_plot(place: Path | None, names: Sequence[str], *, is_many: bool, is_overwriting: bool) -> None:
    """Check the file or folder for pictures of some series, before anything is forecast.

    Raises:
        ProfileError: If several series need a folder that does not exist, or `require_picture` refuses the
            file of one.
    """
    if place is None:
        return
    if not place.is_dir():
        if is_many:
            raise no_folder("--plot", "is a folder that exists where several series are forecast", place)
        require_picture(place, is_overwriting=is_overwriting)
        return
    for name in names:
        require_picture(picture_file(place, name), is_overwriting=is_overwriting)


def picture_file(place: Path, series: str) -> Path:
    """Return the file of a series' picture: the place itself, or, if it is a folder, a file in it."""
    return place / f"{series}.png" if place.is_dir() else place


def require_picture(file: Path, *, is_overwriting: bool) -> None:
    """Check the file for a picture: no folder is created, and no file of anybody else is replaced.

    Raises:
        ProfileError: If it does not end in .png, its folder does not exist, or it exists, is not of v8 and
            may not be replaced.
    """
    if file.suffix.lower() != ".png":
        rule = "is a file that ends in .png"
        fix = f"Write --plot {shlex.quote(str(file.with_suffix('.png')))}"
        raise ProfileError(where="--plot", rule=rule, got=repr(file.name), fix=fix)
    require_folder_of("--plot", file)
    require_own("--plot", file, is_overwriting=is_overwriting)
