"""Flags that follow from the options of a command (`v8.base.options`): no command lists them again."""

import inspect
import types
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Annotated, Any, Final, Union, get_args, get_origin

from annotated_types import Ge, Le
from pydantic.fields import FieldInfo
from typer import Argument, Option

from v8.base.options import Flag, Options
from v8.cli.shared import one_profile, one_run

_NAMED_BY_WORD: Final[Mapping[str, Callable[[str, Any, Any], Any]]] = {
    "PROFILE": one_profile,
    "RUN": one_run,
}
"""What chooses between the word and the flag of an option, by the name of the word."""


def takes_options(model: type[Options]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command a flag for each option of a class; it gets them as one argument, of that class.

    The command's other parameters, which Typer reads, come after these flags.
    """

    def decorate(work: Callable[..., None]) -> Callable[..., None]:
        name = work.__name__.replace("_", "-")

        @wraps(work)
        def call(**values: Any) -> None:
            options = {}
            for option, field, flag in model.flags():
                value = values.pop(option)
                if flag.word:
                    value = _NAMED_BY_WORD[flag.word](name, values.pop(f"{option}_argument"), value)
                if value is None:
                    continue
                options[option] = tuple(value) if _is_several(field.annotation) else value
            work(model(**options), **values)

        own = [*inspect.signature(work).parameters.values()][1:]
        parameters = [*_words(model), *_flags(model), *own]
        by_name = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
        vars(call)["__signature__"] = inspect.Signature(by_name)
        return call

    return decorate


def _words(model: type[Options]) -> list[inspect.Parameter]:
    """List the parameters of options that may also be given as a word without a flag."""
    parameters = []
    for name, field, flag in model.flags():
        if flag.word:
            offered = Argument(metavar=flag.word, help=flag.word_help, hidden=not flag.word_help)
            parameters.append(_parameter(f"{name}_argument", _optional(field.annotation), offered, None))
    return parameters


def _flags(model: type[Options]) -> list[inspect.Parameter]:
    parameters = []
    for name, field, flag in model.flags():
        low, high = _limits(field)
        offered = Option(
            *_names(name, field, flag),
            metavar=flag.metavar,
            help=flag.help,
            min=low,
            max=high,
            rich_help_panel=flag.group or None,
        )
        is_several = _is_several(field.annotation)
        default = None if is_several or flag.word else field.default
        kind = list[str] if is_several else _plain(field.annotation)
        parameters.append(_parameter(name, _optional(kind) if default is None else kind, offered, default))
    return parameters


def _parameter(name: str, kind: Any, offered: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, offered]
    )


def _names(name: str, field: FieldInfo, flag: Flag) -> tuple[str, ...]:
    """Return the names of a flag; a switch has one, without which Typer would add `--no-...`."""
    if flag.names or field.annotation is not bool:
        return flag.names
    return (f"--{name.replace('_', '-')}",)


def _members(kind: Any) -> tuple[Any, ...]:
    """Return what a value may be: the members of a union but None, or the one kind."""
    members = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    return tuple(member for member in members if member is not types.NoneType)


def _is_several(kind: Any) -> bool:
    return get_origin(kind) is tuple


def _plain(kind: Any) -> Any:
    """Return the kind that Typer reads, without range; a text where a number or a text may be given."""
    members = []
    for member in _members(kind):
        members.append(get_args(member)[0] if get_origin(member) is Annotated else member)
    return str if str in members else members[0]


def _optional(kind: Any) -> Any:
    return _plain(kind) | None


def _limits(field: FieldInfo) -> tuple[Any, Any]:
    """Return the smallest and the largest value of an option, None where there is no limit."""
    found: list[Any] = [*field.metadata]
    for member in _members(field.annotation):
        for part in get_args(member)[1:] if get_origin(member) is Annotated else ():
            found += part.metadata if isinstance(part, FieldInfo) else [part]
    lows = [part.ge for part in found if isinstance(part, Ge)]
    highs = [part.le for part in found if isinstance(part, Le)]
    return (lows[0] if lows else None), (highs[0] if highs else None)
