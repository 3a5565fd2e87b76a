"""Pages that are written from the code each time the site is built, so that they cannot lag behind it.

Options come from the command line itself, keys of a profile from its types and the sentences below them, the
fields of the API from what the server says of itself, Python from docstrings, features from their registry.
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

from v8.app import answers
from v8.cli.app import app
from v8.families import FAMILIES
from v8.features import ta_features
from v8.features.indicators import FEATURES, warmup_bars
from v8.profile import Profile

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
    listed = group.commands
    shorts = [(f"[`{name}`](#{name})", one.get_short_help_str(200)) for name, one in listed.items()]
    parts = [
        "# Commands",
        "`scripts/v8 COMMAND` from a checkout, `python -m v8 COMMAND` where v8 is installed. Each command's "
        "`--help` shows the same text. Exit codes are explained in [files and exit codes](files.md).",
        table(("command", "what it does"), shorts),
    ]
    for name, one in listed.items():
        parts += [f"## `{name}` {{#{name}}}", *_command(name, one)]
    return joined(parts)


def _command(name: str, one: Any) -> Iterator[str]:
    context = one.make_context(name, [], resilient_parsing=True)
    yield inspect.cleandoc(str(one.help))
    words = " ".join(context.command.collect_usage_pieces(context))
    yield f"```text\nscripts/v8 {name} {words}\n```"
    records = [param.get_help_record(context) for param in one.params]
    rows = [(f"`{flag.strip()}`", *_parted_help(said)) for flag, said in filter(None, records)]
    yield table(("argument or option", "meaning", "default, limits"), rows)
    if one.epilog:
        yield f"```console\n{_examples(one.epilog)}\n```"


def _parted_help(said: str) -> tuple[str, str]:
    """Part what is said of an option from what stands in brackets behind it."""
    found = re.fullmatch(r"(.*?)(?:\s*\[([^\]]*)\])?", said, re.DOTALL)
    assert found
    return escaped(" ".join(found[1].split())), code(found[2].removeprefix("default: ")) if found[2] else ""


def _examples(epilog: str) -> str:
    lines = textwrap.dedent(epilog.replace("\b", "").replace("Examples:", "")).strip().splitlines()
    return "\n".join(re.sub(r"^.*?\bv8\b", "scripts/v8", line.strip(), count=1) for line in lines)


def profile_keys() -> str:
    """Write every key of a profile with its meaning, unit, limits and default."""
    told = _told_keys(Profile)
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
        table(HEADER, told),
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
    for found in waiting:
        if inspect.isclass(found) and issubclass(found, pydantic.BaseModel):
            return found
        waiting += typing.get_args(found)
    raise LookupError(key)


def _told_keys(model: type[pydantic.BaseModel], prefix: str = "") -> Iterator[tuple[str, ...]]:
    meanings = sentences(model)
    for name, field in model.model_fields.items():
        limits = " and ".join(_limits(field))
        kind = _kind(field.annotation)
        shown = f"{kind}, {limits}" if limits else kind
        meaning = meanings.get(name) or f"A section: its keys stand below under {name}."
        default = "" if field.default is PydanticUndefined else code(_plain(field.default))
        yield f"`{prefix}{name}`", escaped(meaning), unit(name, meaning), escaped(shown), default


def unit(name: str, meaning: str = "") -> str:
    """Return what a number of that name counts, or nothing where it is none."""
    if "unitless" in meaning:
        return "unitless"
    return next((told for end, told in UNITS.items() if name.endswith(end)), "")


def _limits(field: Any) -> Iterator[str]:
    for each in field.metadata:
        for name, sign in LIMITS.items():
            bound = getattr(each, name, None)
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
    if origin is tuple:
        return f"list of {_kind(inner[0])}"
    if origin is dict:
        return "mapping"
    if inner:
        return " or ".join("null" if each is type(None) else _kind(each) for each in inner)
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
    (found,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
    assert isinstance(found, ast.ClassDef)
    return found


def sentences(model: type) -> dict[str, str]:
    """Return the text that stands below each field of a class, and of those it derives from."""
    found = {}
    for owner in reversed(model.__mro__):
        if not issubclass(owner, pydantic.BaseModel) or owner is pydantic.BaseModel:
            continue
        body = _tree(owner).body
        for field, below in pairwise(body):
            match field, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(said))):
                    found[name] = " ".join(said.split())
    return found


def first_sentence(thing: Any) -> str:
    """Return the first line of a docstring, for Markdown."""
    return escaped((inspect.getdoc(thing) or "").partition("\n")[0])


def json_fields() -> str:
    """Write what the files of a run hold, key by key."""
    files: dict[str, Any] = yaml.safe_load(FIELDS.read_text("utf-8"))
    parts = [
        "# JSON: every field",
        "Times are ISO 8601 in UTC, prices in quote currency, durations in seconds, digests sha256 in hex. "
        "`NAME.` stands for any name, `[].` for each element of a list. A newer v8 may add keys, and reads "
        "files of older ones. The answers of the API have [their own page](api.md).",
    ]
    for name, about in files.items():
        rows = [(f"`{key}`", escaped(said)) for key, said in told_fields(about["fields"])]
        parts += [f"## {name}", about["about"], table(("field", "meaning"), rows)]
    return joined(parts)


def told_fields(fields: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield every key of a file with its meaning; a class stands for its fields and their remarks."""
    for key, said in fields.items():
        if isinstance(said, str):
            yield key, said
            continue
        module, _, name = said["of"].rpartition(".")
        owner = getattr(import_module(module), name)
        yield from ((f"{key}.{field}", remark) for field, remark in remarks(owner).items())


def remarks(owner: type) -> dict[str, str]:
    """Return what stands behind each field of a class in its line, or below it."""
    lines = textwrap.dedent(inspect.getsource(owner)).splitlines()
    body = _tree(owner).body
    found = {}
    for field, below in zip(body, [*body[1:], None], strict=True):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(said))):
                found[name] = " ".join(said.split())
            case ast.AnnAssign(target=ast.Name(id=name), end_lineno=int(last)), _:
                found[name] = _dropped(field) or lines[last - 1].rpartition("  # ")[2].strip()
    return found


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


def _operation(told: Mapping[str, Any], schemas: Mapping[str, Any]) -> Iterator[str]:
    yield escaped(told["summary"])
    yield escaped(told.get("description", ""))
    parameters = told.get("parameters")
    if parameters:
        rows = [
            (
                f"`{one['name']}`",
                one["in"],
                escaped(one.get("description", "")),
                code(str(one.get("example", ""))),
            )
            for one in parameters
        ]
        yield table(("parameter", "in", "meaning", "example"), rows)
    rows = [
        (status, escaped(one["description"]), _answered(one)) for status, one in told["responses"].items()
    ]
    yield table(("status", "answer", "form"), rows)
    metrics = told.get("x-metrics")
    if metrics:
        yield table(("metric", "meaning"), [(f"`{name}`", escaped(said)) for name, said in metrics.items()])


def _answered(answer: Mapping[str, Any]) -> str:
    return ", ".join(_form(one["schema"]) for one in answer.get("content", {}).values())


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
    if isinstance(inner := schema.get("additionalProperties"), dict):
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
        "error is a `v8.errors.V8Error`, one sentence of four parts: where, the rule, the value received, "
        "and how to correct it.",
    ]
    for name in sorted(package.__all__):
        thing = getattr(package, name)
        thing = thing if inspect.isclass(thing) or inspect.isroutine(thing) else _called(thing)
        parts += [f"## `v8.{name}` {{#{name.lower()}}}", *_documented(f"v8.{name}", thing)]
        if inspect.isclass(thing):
            for member, about in _members(thing):
                parts += [f"### `{name}.{member}` {{#{name.lower()}-{member}}}", *_documented(member, about)]
    return joined(parts)


def _called(thing: Any) -> Any:
    """Return the function behind a package that can be called."""
    if thing.__name__ == "v8.windows":
        return import_module("v8.api.windows").windows
    return import_module("v8.api.forecaster").features if thing.__name__ == "v8.features" else thing


def _members(owner: type) -> Iterator[tuple[str, Any]]:
    """Yield what is public of a class and its own, in the order of the classes it derives from."""
    seen = set()
    for each in owner.__mro__:
        if not each.__module__.startswith("v8"):
            continue
        for name, held in vars(each).items():
            about = getattr(held, "__func__", held)
            is_told = callable(about) or hasattr(about, "fget") or hasattr(about, "func")
            if name.startswith("_") or name in seen or not is_told or not inspect.getdoc(about):
                continue
            seen.add(name)
            yield name, about


def _documented(name: str, thing: Any) -> Iterator[str]:
    routine = getattr(thing, "fget", None) or getattr(thing, "func", None)
    if routine is None:
        yield f"```python\n{name}{_signature(thing)}\n```"
    yield docstring(inspect.getdoc(routine or thing) or "")


def _signature(thing: Any) -> str:
    """Write the parameters as they stand in the code, without the one that is given by itself."""
    routine = inspect.unwrap(vars(thing).get("__init__", thing) if inspect.isclass(thing) else thing)
    found = ast.parse(textwrap.dedent(inspect.getsource(routine))).body[0]
    if not isinstance(found, ast.FunctionDef):
        return ""
    words = list(_parameters(found.args))
    words = words[1:] if words and words[0] in ("self", "cls") else words
    after = f" -> {ast.unparse(found.returns)}" if found.returns and found.name != "__init__" else ""
    line = f"({', '.join(words)}){after}"
    return line if len(line) < LONGEST_LINE else "(\n    " + ",\n    ".join(words) + f",\n){after}"


def _parameters(told: ast.arguments) -> Iterator[str]:
    named = [*told.posonlyargs, *told.args]
    missing: list[ast.expr | None] = [None] * (len(named) - len(told.defaults))
    for one, default in zip(named, [*missing, *told.defaults], strict=True):
        yield _parameter(one, default)
    if told.vararg:
        yield f"*{ast.unparse(told.vararg)}"
    elif told.kwonlyargs:
        yield "*"
    for one, default in zip(told.kwonlyargs, told.kw_defaults, strict=True):
        yield _parameter(one, default)
    if told.kwarg:
        yield f"**{ast.unparse(told.kwarg)}"


def _parameter(one: ast.arg, default: ast.expr | None) -> str:
    if default is None:
        return ast.unparse(one)
    return ast.unparse(one) + (" = " if one.annotation else "=") + ast.unparse(default)


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
    return "\n".join(f"* `{name.strip()}`: {escaped(' '.join(said.split()))}" for name, _, said in rows)


def _prose(text: str) -> str:
    """Fence examples, and leave the rest as it is."""
    blocks = re.split(r"\n\s*\n", textwrap.dedent(text).strip("\n"))
    shown = (f"```pycon\n{one}\n```" if one.lstrip().startswith(">>>") else escaped(one) for one in blocks)
    return "\n\n".join(shown)


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
    for name, one in sorted(ta_features.outputs().items()):
        taken = ", ".join(f"{key}={_default(value)}" for key, value in one.defaults.items())
        inputs = ", ".join(one.inputs)
        verdict = _verdict(f"ta.{name}") if is_examined else ""
        yield f"`ta.{name}`", one.indicator.__name__, inputs, code(taken), verdict


def _default(value: Any) -> str:
    return "?" if value is inspect.Parameter.empty else _plain(value)


def _verdict(name: str) -> str:
    try:
        found = ta_features.package_feature(name)
    except ta_features.RefusedError as error:
        return escaped(f"refused: {error}")
    return f"{found.sentence.rpartition(', ')[2]}; {warmup_bars([name]):,} bars before the first"


def environment() -> str:
    """Write the variables that v8 reads, each with the sentence that stands in `docs/fields.yaml`."""
    told: dict[str, str] = yaml.safe_load((FIELDS.parent / "variables.yaml").read_text("utf-8"))
    rows = [(f"`{name}`", escaped(said)) for name, said in told.items()]
    return joined(
        [
            "# Environment variables",
            "Secrets in these variables are never printed.",
            table(("variable", "meaning"), rows),
        ]
    )


def variables() -> set[str]:
    """Find the variables that the package reads, by their names in its code."""
    found: set[str] = set()
    for folder, _, files in os.walk(REPOSITORY / "v8"):
        for name in files:
            if name.endswith(".py"):
                text = (Path(folder) / name).read_text("utf-8")
                found |= set(re.findall(r'"(V8_[A-Z_]+)"', text))
    return found


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
