"""Pages that are generated from the code each time the site is built, so that they are never out of date.

Options come from the command line itself, keys of a profile from its types and the sentences below them, the
fields of the API from its OpenAPI description, Python from docstrings, features from their registry.
"""

from __future__ import annotations

import ast
import html
import inspect
import os
import re
import textwrap
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module, metadata
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pydantic
import typer.main
import yaml
from pydantic_core import PydanticUndefined
from typer.core import TyperGroup

from v8.annexes.live.app import answers
from v8.base.registry import added_functions
from v8.cli.app import app
from v8.profile import ta_features
from v8.profile.families import FAMILIES
from v8.profile.indicators import FEATURES, warmup_bars
from v8.profile.profile import Profile

REPOSITORY: Final = Path(__file__).parents[2]
FIELDS: Final = REPOSITORY / "docs" / "fields.yaml"
"""What the files of a run say, key by key; a test holds it to a run's own files."""

UNITS: Final = {
    "_bars": "bars",
    "_epochs": "epochs",
    "_s": "seconds",
    "_bytes": "bytes",
    "epochs": "epochs",
    "batch_size": "windows",
    "gradient_accumulation": "batches",
    "columns": "names",
    "features": "names",
    "units": "units",
    "width": "channels",
    "num_heads": "heads",
}
"""By the end of a key's name, what its number counts."""

LONGEST_LINE: Final = 88
"""Letters of a signature in one line."""

LIMITS: Final = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
Rows = Iterable[Sequence[str]]


def pages() -> dict[str, Callable[[], str]]:
    """Return who writes each page, by its path below a language's folder."""
    return {
        "reference/commands.md": commands,
        "reference/profile-keys.md": profile_keys,
        "reference/json.md": json_fields,
        "reference/api.md": api,
        "reference/python.md": python,
        "reference/features.md": features,
        "reference/environment.md": environment,
    }


def commands() -> str:
    """Write every command with its arguments, options, defaults and examples."""
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    listed = group.commands
    shorts = [(f"[`{name}`](#{name})", single.get_short_help_str(200)) for name, single in listed.items()]
    parts = [
        "# Commands",
        "`scripts/v8 COMMAND` from a checkout, `python -m v8 COMMAND` where v8 is installed. Each command's "
        "`--help` shows the same text. Exit codes are explained in [files and exit codes](files.md).",
        table(("command", "what it does"), shorts),
    ]
    for name, single in listed.items():
        parts += [f"## `{name}` {{#{name}}}", *_command(name, single)]
    return joined(parts)


def _command(name: str, click_command: Any) -> Iterator[str]:
    context = click_command.make_context(name, [], resilient_parsing=True)
    yield inspect.cleandoc(str(click_command.help))
    words = " ".join(context.command.collect_usage_pieces(context))
    yield f"```text\nscripts/v8 {name} {words}\n```"
    records = [param.get_help_record(context) for param in click_command.params]
    rows = [(f"`{flag.strip()}`", *_parted_help(help_text)) for flag, help_text in filter(None, records)]
    yield table(("argument or option", "meaning", "default, limits"), rows)
    if click_command.epilog:
        yield f"```console\n{_examples(click_command.epilog)}\n```"


def _parted_help(help_text: str) -> tuple[str, str]:
    """Separate the description of an option from the brackets behind it."""
    match = re.fullmatch(r"(.*?)(?:\s*\[([^\]]*)\])?", help_text, re.DOTALL)
    assert match
    return escaped(" ".join(match[1].split())), code(match[2].removeprefix("default: ")) if match[2] else ""


def _examples(epilog: str) -> str:
    lines = textwrap.dedent(epilog.replace("\b", "").replace("Examples:", "")).strip().splitlines()
    return "\n".join(re.sub(r"^.*?\bv8\b", "scripts/v8", line.strip(), count=1) for line in lines)


def profile_keys() -> str:
    """Write every key of a profile with its meaning, unit, limits and default."""
    keys_of_profile = _told_keys(Profile)
    sections = {
        "split": _model(Profile, "split"),
        "tasks": _model(Profile, "tasks"),
        "training": _model(Profile, "training"),
        "covariates": _model(Profile, "covariates"),
    }
    parts = [
        "# Keys of a profile",
        "A profile is one YAML file. The profiles that v8 ships contain every key; a key with a default may "
        "be left out. An unknown key, or a value out of its limits, is refused, and the message names it.",
        "## The profile",
        table(HEADER, keys_of_profile),
    ]
    for name, model in sections.items():
        parts += [f"## `{name}`", first_sentence(model), table(HEADER, _told_keys(model, f"{name}."))]
    parts += ["## `network`", "The name of the family is `family`. Each family has its own settings:"]
    for name, family in FAMILIES.items():
        parts += [f"### `{name}`", f"{family.sentence} Source: {escaped(family.source)}."]
        keys = list(_told_keys(family.settings, "network."))
        parts.append(table(HEADER, keys))
    return joined(parts)


HEADER: Final = ("key", "meaning", "unit", "type and limits", "default")


def _model(owner: type[pydantic.BaseModel], key: str) -> type[pydantic.BaseModel]:
    """Return the type of the section under a key, or of its items."""
    waiting: list[Any] = [owner.model_fields[key].annotation]
    for annotation in waiting:
        if inspect.isclass(annotation) and issubclass(annotation, pydantic.BaseModel):
            return annotation
        waiting += typing.get_args(annotation)
    raise LookupError(key)


def _told_keys(model: type[pydantic.BaseModel], prefix: str = "") -> Iterator[tuple[str, ...]]:
    meanings = sentences(model)
    for name, field in model.model_fields.items():
        limits = " and ".join(_limits(field))
        kind = _kind(field.annotation)
        limited_kind = f"{kind}, {limits}" if limits else kind
        meaning = meanings.get(name) or f"A section: its keys stand below under {name}."
        default = "" if field.default is PydanticUndefined else code(_plain(field.default))
        yield f"`{prefix}{name}`", escaped(meaning), unit(name, meaning), escaped(limited_kind), default


def unit(name: str, meaning: str = "") -> str:
    """Return what a number of that name counts, or nothing where it is none."""
    if "unitless" in meaning:
        return "unitless"
    return next((unit for end, unit in UNITS.items() if name.endswith(end)), "")


def _limits(field: Any) -> Iterator[str]:
    for constraint in field.metadata:
        for name, sign in LIMITS.items():
            bound = getattr(constraint, name, None)
            if bound is not None:
                yield f"{sign} {bound:,}"


def _kind(annotation: Any) -> str:
    """Write a type for people."""
    origin = typing.get_origin(annotation)
    inner = typing.get_args(annotation)
    if origin is typing.Annotated:
        return _kind(inner[0])
    if origin is typing.Literal:
        return " or ".join(map(str, inner))
    if origin in (tuple, dict):
        return "mapping" if origin is dict else f"list of {_kind(inner[0])}"
    if inner:
        return " or ".join("null" if argument is type(None) else _kind(argument) for argument in inner)
    if inspect.isclass(annotation) and issubclass(annotation, pydantic.BaseModel):
        return "section"
    names = {int: "whole number", float: "number", str: "text", bool: "true or false"}
    return names.get(annotation, getattr(annotation, "__name__", str(annotation)))


def _plain(value: Any) -> str:
    plain = {None: "null", True: "true", False: "false"}
    if value is None or isinstance(value, bool):
        return plain[value]
    return "[]" if value == () else str(value)


@cache
def _tree(owner: type) -> ast.ClassDef:
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
    assert isinstance(node, ast.ClassDef)
    return node


def sentences(model: type) -> dict[str, str]:
    """Return the text that stands below each field of a class, and of those it derives from."""
    texts = {}
    for owner in reversed(model.__mro__):
        if not issubclass(owner, pydantic.BaseModel) or owner is pydantic.BaseModel:
            continue
        body = _tree(owner).body
        for field, below in pairwise(body):
            match field, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    texts[name] = " ".join(text.split())
    return texts


def first_sentence(documented: Any) -> str:
    """Return the first line of a docstring, for Markdown."""
    return escaped((inspect.getdoc(documented) or "").partition("\n")[0])


def json_fields() -> str:
    """Write what the files of a run hold, key by key."""
    files: dict[str, Any] = yaml.safe_load(FIELDS.read_text("utf-8"))
    parts = [
        "# JSON: every field",
        "Times are ISO 8601 in UTC, prices in quote currency, durations in seconds, digests sha256 in hex. "
        "`NAME.` stands for any name, `[].` for each element of a list. A newer v8 may add keys, and reads "
        "files of older ones. The answers of the API have [their own page](api.md).",
    ]
    for name, file in files.items():
        rows = [(f"`{key}`", escaped(text)) for key, text in told_fields(file["fields"])]
        parts += [f"## {name}", file["about"], table(("field", "meaning"), rows)]
    return joined(parts)


def told_fields(fields: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield every key of a file with its meaning; a class stands for its fields and their remarks."""
    for key, text in fields.items():
        if isinstance(text, str):
            yield key, text
            continue
        module, _, name = text["of"].rpartition(".")
        owner = getattr(import_module(module), name)
        yield from ((f"{key}.{field}", remark) for field, remark in remarks(owner).items())


def remarks(owner: type) -> dict[str, str]:
    """Return what stands behind each field of a class in its line, or below it."""
    lines = textwrap.dedent(inspect.getsource(owner)).splitlines()
    body = _tree(owner).body
    texts = {}
    for field, below in zip(body, [*body[1:], None], strict=True):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                texts[name] = " ".join(text.split())
            case ast.AnnAssign(target=ast.Name(id=name), end_lineno=int(last)), _:
                texts[name] = _dropped(field) or lines[last - 1].rpartition("  # ")[2].strip()
    return texts


def _dropped(field: ast.AnnAssign) -> str:
    """Return why the rows that a field counts were dropped, if it says so."""
    match field.value:
        case ast.Call(args=[ast.Constant(value=str(why))]):
            return f"rows that were dropped: {why}"
    return ""


def api() -> str:
    """Write what each address of `app` answers, from the server's own description."""
    described = answers.description()
    schemas = described["components"]["schemas"]
    parts = [
        "# The API",
        "The API of `scripts/v8 app`, made from the description that it serves at `/openapi.json` "
        f"(OpenAPI {described['openapi']}); a client can be generated from that. How to start it is "
        "explained in [the page and its API](../how-to/page-and-api.md).",
        escaped(described["info"].get("description", "")),
    ]
    for path, methods in described["paths"].items():
        parts += [f"## `{path}`", *_operation(methods["get"], schemas)]
    parts.append("## Objects in the answers")
    for name, schema in schemas.items():
        parts += [f"### {name}", escaped(schema.get("description", "")), _properties(schema)]
    return joined(parts)


def _operation(operation: Mapping[str, Any], schemas: Mapping[str, Any]) -> Iterator[str]:
    yield escaped(operation["summary"])
    yield escaped(operation.get("description", ""))
    parameters = operation.get("parameters")
    if parameters:
        rows = [
            (
                f"`{parameter['name']}`",
                parameter["in"],
                escaped(parameter.get("description", "")),
                code(str(parameter.get("example", ""))),
            )
            for parameter in parameters
        ]
        yield table(("parameter", "in", "meaning", "example"), rows)
    answers = [
        (status, escaped(answer["description"]), _answered(answer))
        for status, answer in operation["responses"].items()
    ]
    yield table(("status", "answer", "form"), answers)
    metrics = operation.get("x-metrics")
    if metrics:
        yield table(("metric", "meaning"), [(f"`{name}`", escaped(text)) for name, text in metrics.items()])


def _answered(answer: Mapping[str, Any]) -> str:
    return ", ".join(_form(content["schema"]) for content in answer.get("content", {}).values())


def _form(schema: Mapping[str, Any]) -> str:
    """Write the form of a value, with links to those that have a name."""
    name = schema.get("$ref", "").rpartition("/")[2]
    if name:
        return f"[{name}](#{name.lower()})"
    several = schema.get("anyOf") or schema.get("oneOf")
    if several:
        return " or ".join(map(_form, several))
    kind = schema.get("type", "value")
    kind = " or ".join(kind) if isinstance(kind, list) else kind
    if "items" in schema:
        return f"list of {_form(schema['items'])}"
    inner = schema.get("additionalProperties")
    if isinstance(inner, dict):
        return f"mapping to {_form(inner)}"
    return f"{kind} ({schema['format']})" if "format" in schema else str(kind)


def _properties(schema: Mapping[str, Any]) -> str:
    needed = schema.get("required", ())
    rows = [
        (f"`{name}`", _form(one), escaped(one.get("description", "")), "" if name in needed else "may lack")
        for name, one in schema.get("properties", {}).items()
    ]
    return table(("field", "form", "meaning", ""), rows) if rows else _form(schema)


def python() -> str:
    """Write what `import v8` offers: signatures, docstrings, examples."""
    package = import_module("v8")
    parts = [
        "# Python",
        "Everything has type hints, and `help` shows the same text. The examples are run by tests. Every "
        "error is a `v8.V8Error`, one sentence of four parts: where, the rule, the value received, "
        "and how to correct it.",
    ]
    for name in sorted({*package.__all__, *added_functions()}):
        value = getattr(package, name)
        parts += [f"## `v8.{name}` {{#{name.lower()}}}", *_documented(f"v8.{name}", value)]
        if inspect.isclass(value):
            for member, method in _members(value):
                parts += [f"### `{name}.{member}` {{#{name.lower()}-{member}}}", *_documented(member, method)]
    return joined(parts)


def _members(owner: type) -> Iterator[tuple[str, Any]]:
    """Yield what is public of a class and its own, in the order of the classes it derives from."""
    names = set()
    for base in owner.__mro__:
        if not base.__module__.startswith("v8"):
            continue
        for name, held in vars(base).items():
            member = getattr(held, "__func__", held)
            is_told = callable(member) or hasattr(member, "fget") or hasattr(member, "func")
            if name.startswith("_") or name in names or not is_told or not inspect.getdoc(member):
                continue
            names.add(name)
            yield name, member


def _documented(name: str, value: Any) -> Iterator[str]:
    routine = getattr(value, "fget", None) or getattr(value, "func", None)
    if routine is None:
        yield f"```python\n{name}{_signature(value)}\n```"
    yield docstring(inspect.getdoc(routine or value) or "")


def _signature(value: Any) -> str:
    """Write the parameters as they stand in the code, without the one that is given by itself."""
    routine = inspect.unwrap(vars(value).get("__init__", value) if inspect.isclass(value) else value)
    definition = ast.parse(textwrap.dedent(inspect.getsource(routine))).body[0]
    if not isinstance(definition, ast.FunctionDef):
        return ""
    words = list(_parameters(definition.args))
    words = words[1:] if words and words[0] in ("self", "cls") else words
    after = (
        f" -> {ast.unparse(definition.returns)}"
        if definition.returns and definition.name != "__init__"
        else ""
    )
    line = f"({', '.join(words)}){after}"
    return line if len(line) < LONGEST_LINE else "(\n    " + ",\n    ".join(words) + f",\n){after}"


def _parameters(arguments: ast.arguments) -> Iterator[str]:
    named = [*arguments.posonlyargs, *arguments.args]
    missing: list[ast.expr | None] = [None] * (len(named) - len(arguments.defaults))
    for argument, default in zip(named, [*missing, *arguments.defaults], strict=True):
        yield _parameter(argument, default)
    if arguments.vararg:
        yield f"*{ast.unparse(arguments.vararg)}"
    elif arguments.kwonlyargs:
        yield "*"
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield _parameter(argument, default)
    if arguments.kwarg:
        yield f"**{ast.unparse(arguments.kwarg)}"


def _parameter(argument: ast.arg, default: ast.expr | None) -> str:
    if default is None:
        return ast.unparse(argument)
    return ast.unparse(argument) + (" = " if argument.annotation else "=") + ast.unparse(default)


def docstring(text: str) -> str:
    """Turn a docstring of Google's form into Markdown: sections become lists, examples become code."""
    parts = re.split(r"^(Args|Returns|Raises|Yields):\n((?:    .*\n?|\n)+)", text + "\n", flags=re.MULTILINE)
    written = [_prose(parts[0])]
    for title, body, after in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        written += [f"**{title}**", _section(title, textwrap.dedent(body)), _prose(after)]
    return joined(written)


def _section(title: str, body: str) -> str:
    if title in ("Returns", "Yields"):
        return escaped(" ".join(body.split()))
    items = re.split(r"^(?=\S)", body, flags=re.MULTILINE)[1:]
    rows = (item.partition(":") for item in items)
    return "\n".join(f"* `{name.strip()}`: {escaped(' '.join(text.split()))}" for name, _, text in rows)


def _prose(text: str) -> str:
    """Fence examples, and leave the rest as it is."""
    blocks = re.split(r"\n\s*\n", textwrap.dedent(text).strip("\n"))
    parts = (
        f"```pycon\n{block}\n```" if block.lstrip().startswith(">>>") else escaped(block) for block in blocks
    )
    return "\n\n".join(parts)


def features(*, is_examined: bool = True) -> str:
    """Write every feature that a profile may name; those of `ta` are examined, which takes a minute."""
    ours = [
        (f"`{name}`", escaped(one.sentence), one.kind.value, str(warmup_bars([name])), escaped(one.source))
        for name, one in FEATURES.items()
    ]
    version = metadata.version("ta")
    return joined(
        [
            "# Features and indicators",
            "Names that a profile may list under `features`. Each is computed only from the past of a "
            "bar; `scripts/v8 features --profile FILE` explains those of a profile. Columns of other series "
            "and of your own tables are explained in [covariates](../how-to/extend.md).",
            "## Features of v8",
            table(("feature", "meaning", "kind", "bars before the first", "source"), ours),
            f"## Outputs of `ta` {version}",
            "The name is that of the output's method, with the parameters that differ from the package's "
            "defaults: `ta.adx`, `ta.stoch(window=10)`. This version was examined; the last column says what "
            "is refused.",
            table(("feature", "indicator", "reads", "parameters", "examined"), _outputs(is_examined)),
        ]
    )


def _outputs(is_examined: bool) -> Iterator[tuple[str, ...]]:
    for name, output in sorted(ta_features.outputs().items()):
        defaults = ", ".join(f"{key}={_default(value)}" for key, value in output.defaults.items())
        inputs = ", ".join(output.inputs)
        verdict = _verdict(f"ta.{name}") if is_examined else ""
        yield f"`ta.{name}`", output.indicator.__name__, inputs, code(defaults), verdict


def _default(value: Any) -> str:
    return "?" if value is inspect.Parameter.empty else _plain(value)


def _verdict(name: str) -> str:
    try:
        feature = ta_features.package_feature(name)
    except ta_features.RefusedError as error:
        return escaped(f"refused: {error}")
    return f"{feature.sentence.rpartition(', ')[2]}; {warmup_bars([name]):,} bars before the first"


def environment() -> str:
    """Write the variables that v8 reads, each with the sentence that stands in `docs/fields.yaml`."""
    sentences_by_name: dict[str, str] = yaml.safe_load((FIELDS.parent / "variables.yaml").read_text("utf-8"))
    rows = [(f"`{name}`", escaped(text)) for name, text in sentences_by_name.items()]
    return joined(
        [
            "# Environment variables",
            "Secrets in these variables are never printed.",
            table(("variable", "meaning"), rows),
        ]
    )


def variables() -> set[str]:
    """Find the variables that the package reads, by their names in its code."""
    names: set[str] = set()
    for folder, _, files in os.walk(REPOSITORY / "v8"):
        for name in files:
            if name.endswith(".py"):
                text = (Path(folder) / name).read_text("utf-8")
                names |= set(re.findall(r'"(V8_[A-Z_]+)"', text))
    return names


def table(header: Sequence[str], rows: Rows) -> str:
    """Write a table of Markdown; bars within cells are escaped."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(text: str) -> str:
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()))
    return "".join(part if part.startswith("`") else part.replace("|", "\\|") for part in parts)


def escaped(text: str) -> str:
    """Keep signs that Markdown or HTML would take for its own, outside code."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(
        part if part.startswith("`") else re.sub(r"([*_\[\]])", r"\\\1", html.escape(part, quote=False))
        for part in parts
    )


def code(text: str) -> str:
    """Write a value as code, nothing for nothing."""
    return f"`{text}`" if text else ""


def joined(parts: Iterable[str]) -> str:
    """Put paragraphs below each other."""
    return "\n\n".join(part for part in parts if part) + "\n"
