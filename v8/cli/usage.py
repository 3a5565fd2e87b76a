"""Errors about the words of a command line, in our form: where, the rule, what was got, and what was meant.

The parser (click, or the copy of it within typer) reports what it could not read. Its errors say neither what
to write instead, nor, of some, to which command they belong. What users of other programs write is known here
by name; everything else is compared with the names that v8 has.
"""

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from v8.base.errors import ProfileError, listed, shown
from v8.base.process import command
from v8.base.registry import added_commands, nearest
from v8.base.wording import capitalized
from v8.data.market.series import TIMEFRAME_S, is_series_like
from v8.profile.profile import key_places

VALUES: Final = "v8.values"
"""Key of `Context.meta` for the values of a command's parameters as they were typed, by their names."""
WORDS: Final = "v8.words"
"""Key of `Context.meta` for the words of a command as they were typed."""

_NO_SUCH_COMMAND: Final = re.compile(r"No such command '(.*?)'(\.|$)")
_EXTRA_WORDS: Final = re.compile(r"unexpected extra argument(?:s|\(s\))? \((.*)\)$")
_NO_CHOICE: Final = re.compile(r"is not one of (.*?)\.?$")

_OTHER_COMMANDS: Final = {
    "train": "run",
    "fit": "run",
    "evaluate": "report",
    "eval": "report",
    "leaderboard": "report",
    "download": "data",
    "fetch": "data",
    "upload": "publish",
    "push": "publish",
    "cv": "backtest",
    "version": "--version",
}
"""What other programs call the commands of the core; annexes say it of theirs."""

_NEWEST: Final = "--bars N takes the newest N candles; dates are not named"
_ONE_NAME: Final = "symbol and timeframe are one name: --series BTCUSDT-15m"
_OTHER_OPTIONS: Final = {
    **dict.fromkeys(("timeframe", "interval", "symbol", "symbols", "pair", "pairs", "coin"), _ONE_NAME),
    **dict.fromkeys(("ticker", "market", "freq", "frequency"), _ONE_NAME),
    **dict.fromkeys(("since", "until", "start", "end", "date", "days", "limit"), _NEWEST),
    **dict.fromkeys(("gpu", "cuda"), "write --device gpu"),
    "cpu": "write --device cpu",
}
"""What users call options that v8 has in another form, and the clause that says in which."""

_SAME_OPTIONS: Final = {
    "config": "profile",
    "model": "profile",
    "exchange": "source",
    "output": "out",
    "jobs": "workers",
    "threads": "workers",
    "processes": "workers",
    "force": "overwrite",
}
"""What users call options that v8 has under another name."""

_FORMATS: Final = ("csv", "json", "parquet")
"""Formats that users write as options: of a table that is printed, or of candles that are read."""

_CANDLE_FILES: Final = (*_FORMATS, "file", "files", "path", "folder", "dir")
"""What users call candles of their own."""

_OTHER_KEYS: Final = {"lr": "learning_rate", "steps": "horizon_bars", "window": "lookback_bars"}
"""What users call keys of a profile."""


def usage_error(error: Any, commands: Collection[str]) -> ProfileError:
    """Put an error of the parser into our form.

    Args:
        error: Of click, or of the copy of it within typer.
        commands: Names of all commands.
    """
    describe = _DESCRIBED.get(type(error).__name__)
    if describe:
        return describe(error, _place(error))
    message = error.format_message()
    unknown_command = _NO_SUCH_COMMAND.match(message)
    if unknown_command:
        return _unknown_command(unknown_command[1], _place(error), commands)
    extra_words = _EXTRA_WORDS.search(message)
    if extra_words and error.ctx:
        return _extra_words(error, extra_words[1].split(), _place(error))
    got = message.removeprefix("Got ").rstrip(".?")
    place = _place(error)
    return ProfileError(
        where=place,
        rule="takes the words that its --help lists",
        got=f"{got[:1].lower()}{got[1:]}",
        fix=f"Call {place} --help",
    )


def _place(error: Any) -> str:
    """Return the command that an error is about, as it is called."""
    return str(error.ctx.command_path) if error.ctx else command()


def _unknown_command(name: str, place: str, commands: Collection[str]) -> ProfileError:
    lists = f"`{place} --help` lists them"
    if name == "help":
        return ProfileError(where=place, rule="needs one of its commands", got=name, fix=lists)
    other_names = {other: own for own, added in added_commands().items() for other in added.also}
    meant = (_OTHER_COMMANDS | other_names).get(name) or nearest(name, commands)
    return ProfileError(
        where=place,
        rule="needs one of its commands",
        got=shown(name),
        fix=f"Did you mean `{place} {meant}`? {lists}" if meant else lists,
    )


def _no_such_option(error: Any, place: str) -> ProfileError:
    lists = f"`{place} --help` lists them"
    name = str(error.option_name)
    words = error.ctx.meta.get(WORDS, ())
    # "-series" is read as "-s -e ...", and the error names the first of them.
    whole = next((word for word in words if word.startswith(name) and not word.startswith("--")), name)
    meant = _meant_option(whole.partition("=")[0], error.ctx, place)
    if meant:
        meant += "?" if meant.startswith("Did you mean") else ";"
    return ProfileError(
        where=place,
        rule="takes only its own options",
        got=shown(whole),
        fix=f"{meant} {lists}" if meant else lists,
    )


def _meant_option(name: str, context: Any, place: str) -> str | None:
    """Say what an unknown option probably means; None if that is not known."""
    own = _options(context)
    plain = name.lstrip("-").replace("_", "-")
    if not own & {"--profile", "--series", "--source"}:  # the program itself, before any command
        commands = getattr(context.command, "commands", {})
        owner = next((each for each in commands if name in _option_names(commands[each].params)), None)
        return f"Write the command first, such as `{place} {owner} {name} ...`" if owner else None
    if not name.startswith("--") and f"--{plain}" in own:
        return f"Write --{plain}, with two dashes"
    other_form = _other_form(plain, context)
    if other_form:
        return other_form
    same = _SAME_OPTIONS.get(plain)
    if same and f"--{same}" in own:
        return f"Did you mean --{same}"
    key = _key_of_profile(plain)
    is_beginning = any(option.startswith(f"--{plain}") for option in own)
    if key and "--profile" in own and not is_beginning:
        return f"{key} is a key of profiles: write it into a copy of the profile's file, and name that file"
    suggestion = nearest(f"--{plain}", own)
    return f"Did you mean {suggestion}" if suggestion else None


def _other_form(plain: str, context: Any) -> str | None:
    """Say how an option is written that v8 has in another form; None for other options."""
    own = _options(context)
    if plain in _OTHER_OPTIONS:
        return capitalized(_OTHER_OPTIONS[plain])
    if plain in _FORMATS and "--format" in own:
        choices = [str(each.metavar) for each in context.command.params if "--format" in each.opts]
        if plain in "|".join(choices).split("|"):
            return f"Write --format {plain}"
    if plain in _CANDLE_FILES and "--data-dir" in own:
        return "Candles of your own are a folder: --source files --data-dir DIR"
    return None


def _key_of_profile(plain: str) -> str | None:
    """Return the place of a key of a profile by its name, or by the beginning of it up to a word's end."""
    places = key_places()
    name = _OTHER_KEYS.get(plain, plain.replace("-", "_"))
    for key, place in places.items():
        if key in (name, f"{name}s") or key.startswith(f"{name}_"):
            return place
    return None


def _missing_parameter(error: Any, place: str) -> ProfileError:
    name = _called(error.param)
    return ProfileError(where=place, rule=f"needs {name}", got="none", fix=_example(error, place))


def _example(error: Any, place: str) -> str:
    """Return the example of the command's help that has the missing parameter, else its first."""
    options = [option for option in error.param.opts if option.startswith("--")]
    lines = [line.strip() for line in str(error.ctx.command.epilog or "").splitlines()[2:]]
    with_option = [line for line in lines if any(option in line.split() for option in options)]
    for line in with_option or lines:
        return f"Write for example {line}"
    return f"Call {place} --help"


def _bad_option_usage(error: Any, place: str) -> ProfileError:
    name = str(error.option_name)
    if "does not take a value" in error.format_message():
        return ProfileError(
            where=f"{place}, {name}", rule="takes no value", got="one", fix=f"Write {name} alone"
        )
    metavar = ""
    for parameter in error.ctx.command.params if error.ctx else ():
        if name in parameter.opts:
            metavar = f" {parameter.metavar or 'VALUE'}"
    return ProfileError(
        where=f"{place}, {name}",
        rule="needs a value",
        got="none",
        fix=f"Write {name}{metavar}, or leave it out",
    )


def _bad_parameter(error: Any, place: str) -> ProfileError:
    parameter = error.param
    name = _called(parameter).split()[0]
    value = error.ctx.meta.get(VALUES, {}).get(parameter.name)
    if "is not readable" in error.format_message():  # of a path, which the parser looks at
        kind = "a folder" if value is not None and Path(str(value)).is_dir() else "a file"
        return ProfileError(
            where=f"{place}, {name}",
            rule=f"must be {kind} that can be read",
            got=f"{shown(value)}, which this user may not read",
            fix="Change its permissions, or let its owner call this",
        )
    got = "another value" if value is None else shown(repr(value))
    choices = _NO_CHOICE.search(error.format_message())
    return ProfileError(
        where=f"{place}, {name}",
        rule=f"is one of {choices[1]}" if choices else _rule_of_number(parameter),
        got=got,
        fix=f"Write for example {name} {_fitting(parameter)}" if not choices else "Choose one of these",
    )


def _rule_of_number(parameter: Any) -> str:
    noun = "a whole number" if _is_whole(parameter) else "a number"
    low, high = _limits(parameter)
    if low is None:
        return f"is {noun}"
    return f"is {noun} of at least {low:,}" if high is None else f"is {noun} from {low:,} to {high:,}"


def _limits(parameter: Any) -> tuple[float | None, float | None]:
    """Return the smallest and the largest value of a parameter, None where there is no limit."""
    kind = getattr(parameter, "type", parameter)  # older versions of typer keep them there
    return getattr(kind, "min", None), getattr(kind, "max", None)


def _is_whole(parameter: Any) -> bool:
    descriptor = getattr(parameter, "type_descriptor", None)
    kind = getattr(parameter, "type", None)
    return getattr(descriptor, "annotation", None) is int or str(getattr(kind, "name", "")).startswith("int")


def _fitting(parameter: Any) -> str:
    """Return a value that a parameter takes: its default, or a number within its limits."""
    if isinstance(parameter.default, int | float):
        return f"{parameter.default:g}"
    low, _ = _limits(parameter)
    return "10" if low is None else f"{max(low, 1):g}"


def _extra_words(error: Any, words: Sequence[str], place: str) -> ProfileError:
    parameters = error.ctx.command.params
    arguments = [each.metavar.strip("[]") for each in parameters if each.param_type_name == "argument"]
    rule = f"takes {' '.join(arguments)} and options" if arguments else "takes options only"
    flag = _flag_before(words[0], error.ctx)
    meant = f"{flag} takes no value: write it alone" if flag else None
    for word in words:
        meant = meant or meant_word(word, place, _options(error.ctx))
    return ProfileError(
        where=place,
        rule=rule,
        got=f"also {listed(words)}",
        fix=meant or f"Leave it out; `{place} --help` lists the options",
    )


def _flag_before(word: str, context: Any) -> str | None:
    """Return the flag without a value that stands before a word as it was typed; None if there is none."""
    typed = list(context.meta.get(WORDS, ()))
    before = typed[typed.index(word) - 1] if word in typed[1:] else ""
    flags = {name for each in context.command.params if getattr(each, "is_flag", False) for name in each.opts}
    return before if before in flags else None


def meant_word(word: str, place: str, options: Iterable[str] = ("--series", "--profile")) -> str | None:
    """Say how a word that stands alone is probably meant; None if that is not known.

    Args:
        word: As it was typed.
        place: The command, as it is called.
        options: The options of the command.

    >>> meant_word("BTCUSDT-15m", "v8 run"), meant_word("profile=aligned", "v8 run")
    ('Write --series BTCUSDT-15m', 'Write --profile aligned')
    >>> meant_word("15m", "v8 run"), meant_word("help", "v8 run"), meant_word("mine.yaml", "v8 run")
    ('Symbol and timeframe are one name: --series BTCUSDT-15m', 'Call v8 run --help', None)
    """
    options = {*options}
    name, sign, value = word.partition("=")
    option = f"--{name.lstrip('-').replace('_', '-')}"
    if word == "help":
        return f"Call {place} --help"
    if sign and option in options:
        return f"Write {option} {value}"
    if "--series" in options and is_series_like(word):
        return f"Write --series {word}"
    if "--series" in options and word in TIMEFRAME_S:
        return capitalized(_ONE_NAME)
    if "--profile" in options and Path(word).suffix in (".yaml", ".yml"):
        return f"Write --profile {word}" if Path(word).is_file() else None
    return None


def _called(parameter: Any) -> str:
    """Name a parameter as it is written: an option with what follows it, an argument by its placeholder."""
    if parameter.param_type_name != "option":
        return str(parameter.metavar or parameter.name)
    option = max(parameter.opts, key=len)
    return f"{option} {parameter.metavar}" if parameter.metavar else option


def _options(context: Any) -> set[str]:
    return _option_names(context.command.get_params(context))


def _option_names(parameters: Iterable[Any]) -> set[str]:
    return {name for each in parameters for name in each.opts if name.startswith("-")}


_DESCRIBED: Final[dict[str, Callable[[Any, str], ProfileError]]] = {
    "NoSuchOption": _no_such_option,
    "MissingParameter": _missing_parameter,
    "BadOptionUsage": _bad_option_usage,
    "BadParameter": _bad_parameter,
}
"""By the name of the error's class, which click and typer's copy of it share."""
