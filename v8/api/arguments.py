"""Arguments of the Python API: checked by their annotations, named in errors, turned into options.

A function of the API declares its arguments by annotations. `in_python` refuses any other value before the
function is called, in one sentence that names the argument, and it writes the parameters in errors from other
packages as Python arguments. So there is one check for all functions, and none in the functions themselves.
What takes long they do in a process of its own (`call_in_child`).

Candles and profiles that a call has in memory are stored under `V8_HOME`: frames as Parquet in a folder named
by their content, so that the same call continues an interrupted run.
"""

import inspect
import io
import os
import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import cache, wraps
from numbers import Integral, Real
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Final,
    ParamSpec,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np
import pandas as pd
import yaml
from pydantic import BaseModel, ValidationError

from v8.base.child import run_in_child
from v8.base.errors import (
    PARTS,
    ArgumentError,
    ProfileError,
    StorageError,
    V8Error,
    as_argument,
    listed,
    shown,
    with_parameters,
)
from v8.base.hardware import process_variables
from v8.base.process import command
from v8.base.records import adapter, first_fault
from v8.base.registry import nearest
from v8.base.storage import digest_json, home, write_bytes, write_text
from v8.data.market.checks import check_candles
from v8.data.market.companions import UserTable
from v8.data.market.series import Series
from v8.data.market.sources import SOURCES
from v8.profile.profile import Profile, profile_names

RawCandles: TypeAlias = str | Path | pd.DataFrame | Mapping[str, pd.DataFrame]

TABLES: Final = "tables"  # folder under `V8_HOME` for tables that a call has in memory
FRAMES: Final = "frames"
"""Source name under which frames are evaluated and recorded: they are files of the user."""

MOST_LETTERS: Final = 4_096  # the longest text; no path is longer
_LARGEST_SHOWN: Final = 10**30
_WORDS: Final[Mapping[Any, str]] = {
    str: "a text",
    Path: "a path",
    type(None): "None",
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    datetime: "a time",
    pd.DataFrame: "a frame",
    np.ndarray: "an array",
    Mapping: "a mapping by text",
    Sequence: "a list",
    Sequence[str]: "a list of texts",
}
"""Names of the kinds of arguments in messages."""

_KINDS: Final[Mapping[Any, Any]] = {int: Integral, float: Real, Path: os.PathLike, Any: object}
"""Classes whose instances an annotation accepts, where these are more than its own."""

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
Options = TypeVar("Options")


def in_python(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Check the arguments of a function by its annotations, and let its errors name arguments, not flags.

    The function then raises `ArgumentError` for an argument that does not fit its annotation.
    """
    called = f"v8.{function.__qualname__.removesuffix('.__init__')}"

    @wraps(function)
    def call(*positional: Parameters.args, **named: Parameters.kwargs) -> Result:
        try:
            bound = _bound(function, called, positional, named)
            return function(*bound.args, **bound.kwargs)
        except V8Error as error:
            original = error
        except OSError as error:  # from a file that no function of ours opened
            original = StorageError.out_of_reach(error)
        parts: dict[str, Any] = {
            name: with_parameters(getattr(original, name), as_argument) for name in PARTS
        }
        if parts["where"] in (command(), command("run")):
            parts["where"] = called
        raise type(original)(**parts) from original.__cause__  # not from itself: it would be said twice

    vars(call)["__signature__"] = _without_limits(inspect.signature(function))
    return call


def _without_limits(signature: inspect.Signature) -> inspect.Signature:
    """Return a signature as `help` is to show it: `int` for an `int` of limited range."""
    parameters = []
    for parameter in signature.parameters.values():
        members = get_args(parameter.annotation)
        kind = parameter.annotation
        if get_origin(kind) is Annotated:
            kind = members[0]
        elif get_origin(kind) in (Union, types.UnionType):
            plain = [get_args(member)[0] if get_origin(member) is Annotated else member for member in members]
            kind = Union[tuple(plain)]  # noqa: UP007 - of a list
        parameters.append(parameter.replace(annotation=kind))
    return signature.replace(parameters=parameters)


def call_in_child(
    function: Callable[[Options], Result], options: Options, *, where: str, progress: bool
) -> Result:
    """Call what a function of the API does in a process of its own, on the device that `auto` stands for.

    Args:
        function: See `run_in_child`.
        options: Its argument.
        where: The function of the API, such as "v8.backtest", for errors.
        progress: Whether to print the lines that the child sends.

    Raises:
        V8Error: The one that the function raises; or another, if it ends without a value.
    """
    return run_in_child(
        function,
        options,
        where=where,
        environment=process_variables("auto"),
        on_message=print if progress else None,
    )


def _bound(
    function: Callable[..., Any], called: str, positional: Sequence[Any], named: Mapping[str, Any]
) -> inspect.BoundArguments:
    """Bind the arguments of a call to parameters, each checked.

    Raises:
        ArgumentError: If one is unknown, missing, or not what its annotation says.
    """
    signature, kinds, is_open = _signature(function)
    unknown = next((name for name in named if name not in kinds and not is_open), None)
    if unknown:
        raise unknown_argument(called, unknown, list(kinds))
    try:
        bound = signature.bind(*positional, **named)
    except TypeError as error:
        rule = f"has the arguments {listed(list(kinds))}"
        raise _refused(called, rule, f"a call with an error: {error}") from error
    for name in bound.arguments.keys() & kinds.keys():
        bound.arguments[name] = checked_argument(called, name, bound.arguments[name], kinds[name])
    return bound


@cache
def _signature(function: Callable[..., Any]) -> tuple[inspect.Signature, dict[str, Any], bool]:
    """Return the signature of a function, the annotations of its arguments, and if it takes `**options`."""
    signature = inspect.signature(function)
    annotations = {name: kind for name, kind in function.__annotations__.items() if name != "return"}
    annotated = types.SimpleNamespace(__annotations__=annotations)
    kinds = get_type_hints(annotated, getattr(function, "__globals__", {}), include_extras=True)
    is_open = any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values())
    return signature, kinds, is_open


def checked_argument(called: str, name: str, value: Any, kind: Any) -> Any:
    """Return an argument, checked; numbers of NumPy become those of Python.

    Raises:
        ArgumentError: If it is not of its kind.
    """
    value = value.item() if isinstance(value, np.integer | np.floating | np.bool_) else value
    if not _fits(value, kind):
        raise _refused(f"{called}, {name}=", _rule(value, kind), _described(value))
    return value


_OF_CANDLES: Final = ("source", "data_dir")
"""Options that follow from the argument `candles`, see `source_of`."""


def further_options(options: type[BaseModel], function: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations of the options of a command that are no arguments of a function by themselves.

    Args:
        options: Those of the command.
        function: It takes the others as further arguments.
    """
    own = (*inspect.signature(function).parameters, *_OF_CANDLES)
    fields = options.model_fields.items()
    return {name: argument_kind(field.annotation) for name, field in fields if name not in own}


def checked_options(
    called: str,
    function: Callable[..., Any],
    given: Mapping[str, Any],
    kinds: Mapping[str, Any],
    others: Collection[str] = (),
) -> dict[str, Any]:
    """Return those of the further arguments of a function that are options, checked.

    Args:
        called: How the function is called, for messages.
        function: The function, which takes further arguments.
        given: Its further arguments; None stands for the default of one.
        kinds: The annotations of the options, see `further_options`.
        others: Names of arguments that are no options.

    Raises:
        ArgumentError: If one is neither, or an option does not fit its kind.
    """
    unknown = next((name for name in given if name not in kinds and name not in others), None)
    if unknown:
        parameters = inspect.signature(function).parameters.values()
        own = [parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD]
        raise unknown_argument(called, unknown, [*own, *kinds], others)
    checked = {}
    for name, kind in kinds.items():
        if given.get(name) is not None:
            value = checked_argument(called, name, given[name], kind)
            is_one_of_several = Sequence in [get_origin(member) for member in get_args(kind)]
            if is_one_of_several:
                value = (value,) if isinstance(value, str | Path) else tuple(value)
            checked[name] = value
    return checked


def argument_kind(kind: Any) -> Any:
    """Return the annotation of an argument for an option: None is its default, and one stands for several.

    >>> argument_kind(bool), argument_kind(tuple[str, ...])
    (bool | None, str | collections.abc.Sequence[str] | None)
    """
    if get_origin(kind) is tuple:
        item = _given_as(get_args(kind)[0])
        return item | Sequence[item] | None  # type: ignore[valid-type]
    return _given_as(kind) | None


def _given_as(kind: Any) -> Any:
    """Let a text stand for a path."""
    members = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    kinds: list[Any] = []
    for member in members:
        kinds += [str, Path] if member is Path else [member]
    return Union[tuple(kinds)]  # noqa: UP007 - of a list


def maybe_path(place: str | Path | None) -> Path | None:
    """Return the path that an argument holds, if it holds one."""
    return None if place is None else Path(place)


def series_list(series: str | Sequence[str] | None) -> list[str]:
    """Return the names of series that an argument holds: one, several, or none."""
    return [series] if isinstance(series, str) else list(series or ())


def _fits(value: Any, kind: Any) -> bool:
    """Return whether a value fits an annotation; a text is no list of letters, and True is no number."""
    members = get_args(kind)
    plain = get_origin(kind) or kind
    if plain in (Union, types.UnionType):
        return any(_fits(value, member) for member in members)
    if plain is Annotated:
        return _fits(value, members[0]) and not _out_of_range(value, kind)
    return isinstance(value, _KINDS.get(plain, plain)) and _is_plain(value, plain, members)


def _is_plain(value: Any, plain: Any, members: Sequence[Any]) -> bool:
    """Return whether an instance of the annotated class `plain` fits in other respects, too."""
    if plain in (int, float):
        return not isinstance(value, bool)
    if plain in (str, Path):
        text = os.fspath(value)
        return 0 < len(text) <= MOST_LETTERS and str(text).isprintable()
    if plain in (Sequence, Mapping):
        is_text = isinstance(value, str | bytes | bytearray)
        # Of a mapping the keys are checked.
        return not is_text and all(_fits(item, members[0]) for item in value)
    return True


def _out_of_range(value: Any, kind: Any) -> str | None:
    """Return the rule that a value breaks; None if it breaks none."""
    try:
        adapter(kind).validate_python(value)
    except ValidationError as error:
        return first_fault(error)[1]
    return None


def _rule(value: Any, kind: Any) -> str:
    """Say what an argument must be, for the message that refuses this value."""
    members = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    if isinstance(value, str | os.PathLike) and {str, Path} & {*members}:
        return f"is of 1 to {MOST_LETTERS:,} printable letters"
    for member in members:
        if get_origin(member) is Annotated and _fits(value, get_args(member)[0]):
            return f"{_out_of_range(value, member)}".replace("must be", "is")
    words = list(dict.fromkeys(_word(member) for member in members))
    return f"is {', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else f"is {words[0]}"


def _word(kind: Any) -> str:
    plain = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    origin = get_origin(plain) or plain
    return _WORDS.get(plain) or _WORDS.get(origin) or f"a {origin.__name__}"


def _described(value: Any) -> str:
    """Describe a wrong argument: by its value if that is a number, a text or None, otherwise by its type."""
    if isinstance(value, int) and abs(value) > _LARGEST_SHOWN:
        return f"one of {value.bit_length():,} bits"
    if value is None or isinstance(value, int | float | complex | str | bytes):
        text = shown(repr(value), 60)
        if isinstance(value, str) and len(value) > MOST_LETTERS:
            return f"{text} of {len(value):,} letters"
        return text
    return f"a {shown(type(value).__name__, 60)}"


def unknown_argument(
    called: str, name: str, arguments: Sequence[str], others: Iterable[str] = ()
) -> ArgumentError:
    """Build the error for an unknown argument, which suggests the nearest name of `arguments` or `others`."""
    near = nearest(name, arguments) or nearest(name, others)
    return ArgumentError(
        where=called,
        rule=f"has the arguments {listed(arguments)}",
        got=f"one named {shown(name, 60)!r}",
        fix=f"Did you mean {near}=" if near else f"help({called}) lists them",
    )


def _refused(place: str, rule: str, got: str) -> ArgumentError:
    called = place.partition(",")[0]
    return ArgumentError(where=place, rule=rule, got=got, fix=f"help({called}) says what it means")


def with_others(
    candles: RawCandles, names: list[str], profile: Profile, covariates: Mapping[str, Any]
) -> RawCandles:
    """Add frames of other symbols to those of the series, and add the trained series to `names`.

    Raises:
        ProfileError: If the candles are no frames, or of several timeframes.
    """
    files = {covariate.file for covariate in profile.covariates}
    others = {symbol: frame for symbol, frame in covariates.items() if symbol not in files}
    if not others:
        return candles
    frames = _frames(candles, names) if not isinstance(candles, str | Path) else {}
    timeframes = {Series.parse(name).timeframe for name in frames}
    if len(timeframes) != 1:
        raise ProfileError(
            where="covariates=",
            rule="holds candles of other symbols only together with frames of candles of one timeframe",
            got=f"{listed(list(others))} together with {'several' if frames else repr(str(candles))}",
            fix="Leave them out where the source has them, or put them among the frames and name "
            "yours: series=",
        )
    (timeframe,) = timeframes
    return dict(frames) | {f"{symbol}-{timeframe}": frame for symbol, frame in others.items()}


def source_of(candles: RawCandles, names: list[str]) -> dict[str, Any]:
    """Return the candle source of a call as options of a run; frames are stored first."""
    require_no_profile(candles)
    if isinstance(candles, str) and candles in SOURCES:
        return {"source": candles}
    if isinstance(candles, str | Path):
        if not Path(candles).is_dir():
            SOURCES.find(str(candles), where="candles=")  # suggests the nearest
        return {"source": "files", "data_dir": candles}
    return {"source": "files", "data_dir": stored_frames(_frames(candles, names))}


def require_no_profile(candles: RawCandles) -> None:
    """Refuse the name of a profile where candles belong: the order of two arguments is easily confused."""
    if isinstance(candles, str) and candles in profile_names():
        raise ProfileError(
            where="candles=",
            rule="comes first and says where candles come from; the profile comes second",
            got=f"the profile {candles}",
            fix=f'Write ("vision", "{candles}")',
        )


def _frames(
    candles: pd.DataFrame | Mapping[str, pd.DataFrame], names: list[str]
) -> Mapping[str, pd.DataFrame]:
    """Return frames by series, and add all of these to `names` if it is empty.

    Raises:
        ProfileError: If it is not known which series a frame holds.
    """
    frames = candles if isinstance(candles, Mapping) else dict.fromkeys(names[:1], candles)
    if not frames or (len(names) != 1 and not isinstance(candles, Mapping)):
        raise ProfileError(
            where="series=",
            rule="names the one series that a frame holds",
            got=listed(names) or "none",
            fix='Write for example series="BTCUSDT-15m", or give a mapping of frames by series',
        )
    names[:] = names or list(frames)
    return frames


def stored_frames(frames: Mapping[str, pd.DataFrame]) -> Path:
    """Write checked frames as Parquet under `V8_HOME`, in a folder named by their content.

    A file that was cut or holds something else since is written again.
    """
    checked = {
        name: check_candles(frame, Series.parse(name), source=FRAMES) for name, frame in frames.items()
    }
    digests = {name: candles.digest for name, candles in checked.items()}
    folder = home() / FRAMES / digest_json(digests)[:16]
    for name, candles in checked.items():
        buffer = io.BytesIO()
        candles.to_frame().to_parquet(buffer)
        write_bytes(folder / f"{name}.parquet", buffer.getvalue())
    return folder


def stored_tables(tables: Sequence[UserTable]) -> Path:
    """Write checked tables as CSV under `V8_HOME`, in a folder named by their content, as `stored_frames`."""
    texts = {table.settings.file: table.to_csv() for table in tables}
    folder = home() / TABLES / digest_json(texts)[:16]
    for file, text in texts.items():
        write_text(folder / file, text)
    return folder


def profile_file(profile: str | Path | Profile) -> str | Path:
    """Return the name or file of a profile; a `Profile` is written to a file under `V8_HOME`."""
    if not isinstance(profile, Profile):
        return profile
    file = home() / "profiles" / f"{profile.digest[:16]}.yaml"
    write_text(file, yaml.safe_dump(profile.model_dump(mode="json"), sort_keys=False))
    return file


class PublicNames:
    """Base of classes of which tab completion lists the public names only."""

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if not name.startswith("_")]
