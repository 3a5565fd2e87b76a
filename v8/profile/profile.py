"""Profiles: what to train, one complete YAML file each, checked, frozen and identified by a digest.

There is no inheritance, and all shipped files have the same keys, so a diff of two files shows all
differences between two models. Only keys that were added later have defaults, for older files. Flags of the
command line choose where and how far a profile runs. They never change the profile, except through
`Profile.with_budget`, which changes the digest, too.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import pydantic
from pydantic import AfterValidator, BeforeValidator, Field, ValidationError

from v8.base.errors import ProfileError, shown
from v8.base.records import (
    MAX_YAML_DEPTH,
    Settings,
    adapter,
    checked,
    first_error,
    read_yaml,
    refusing,
    under_key,
)
from v8.base.registry import advice, nearest, suggestion_clause
from v8.base.storage import digest_json, expanded
from v8.profile import columns as c
from v8.profile import indicators
from v8.profile.families import FAMILIES
from v8.profile.family import Family, NetworkOutputs, NetworkSettings, NetworkShape
from v8.profile.formulas import ANCHORED_KINDS
from v8.profile.settings import SplitSettings, TableSettings, TaskSettings, TrainingSettings
from v8.profile.tasks import TASKS

PROFILE_FORMAT = 2  # version of the key set below; part of the digest
_CHANGE_IT: Final = "Change it in the profile"
MOST_VALUES: Final = 10_000  # in a list; a profile has some hundred

ProfileName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")]
"""Lower-case letters, digits, dashes and underscores: it is the name of a folder."""

TABLES_PLACE: Final = "V8_TABLES"
"""Environment variable for the folder of users' tables, like `--tables`; by default the current folder."""


def tables_folder(folder: Path | None = None) -> Path:
    """Return the absolute path of a folder of users' tables: that of `V8_TABLES` when None."""
    if folder is None:
        folder = expanded(os.environ.get(TABLES_PLACE) or ".", variable=TABLES_PLACE)
    return folder.absolute()


_CHANGED: Final = re.compile(r"-but-[0-9a-f]{8}$")
"""End of the name of a changed profile. Equal changes give equal names, and so the same run folder."""

_SHORTCUT_SECTIONS: Final = ("network", "split", "training")
"""Sections whose keys `but` accepts without the section: no key is in two sections."""

_LATER_KEYS: Final = ("quantiles", "covariates")  # keys that older published profiles do not have


def _read_network(network: Any) -> Any:
    """Read the section `network` with the settings of the family that it names."""
    if isinstance(network, NetworkSettings):
        return network
    name = network.get("family") if isinstance(network, dict) else None
    if name is None:
        raise ValueError(f"must name its family, one of {', '.join(FAMILIES)}")
    if str(name) not in FAMILIES:
        suggestion = suggestion_clause(str(name), FAMILIES)
        raise ValueError(f"{name!r} is no network family, which are {', '.join(FAMILIES)}{suggestion}")
    # Validated as a mapping, so that errors name the family, too: key network.lstm_dense.dropout.
    kind: Any = dict[str, FAMILIES[name].settings]  # type: ignore[misc]
    return adapter(kind).validate_python({name: _tuples(network)})[name]


_Names = Annotated[tuple[str, ...], Field(min_length=1), AfterValidator(indicators.plain_names)]


def _fault_of_features(features: tuple[str, ...]) -> str | None:
    num = len(c.neighbours(features))
    if num > c.MOST_NEIGHBOURS:
        return f"must name features of at most {c.MOST_NEIGHBOURS} other series, not {num}"
    missing = ", ".join(name for name in c.OHLC if name not in features)
    return f"must hold open, high, low, close; missing: {missing}" if missing else None


def _fault_of_tasks(tasks: dict[str, TaskSettings]) -> str | None:
    for name in tasks:
        if name not in TASKS:
            return f"{name!r} is no task, which are {', '.join(TASKS)}{suggestion_clause(name, TASKS)}"
    if c.TASK_OHLC not in tasks:
        return "must hold ohlc: the candles are what everything else is drawn on"
    return None


def _fault_of_quantiles(levels: tuple[float, ...]) -> str | None:
    return c.fault_of_levels(levels) if levels else None


class _CheckedModel(type(pydantic.BaseModel)):  # type: ignore[misc]
    """Makes `Profile(...)` raise a `ProfileError` instead of pydantic's own error."""

    def __call__(cls, *names: str, **content: Any) -> Any:
        if names:
            return Profile.of(*names).but(**content)
        return checked_profile(content, where=f"profile {content.get('name', 'without a name')}")


class Profile(Settings, metaclass=_CheckedModel):
    """A complete, immutable description of what to train.

    >>> profile = Profile.of("frontier").but(learning_rate=3e-4, training={"epochs": 3})
    >>> profile.training.learning_rate, profile.training.epochs
    (0.0003, 3)
    """

    name: ProfileName
    """Name of its run folders: lower-case letters, digits, dashes and underscores."""
    description: str = Field(min_length=1, max_length=1_000)
    """One sentence for the model card."""
    newest_bars: int = Field(ge=100, le=10_000_000)
    """Number of candles per series, counted back from the newest closed one."""
    features: Annotated[_Names, refusing(indicators.fault_of), refusing(_fault_of_features)]
    """Names of the input columns, in the order of the network's last axis."""
    lookback_bars: int = Field(ge=2, le=10_000)
    """Bars that a forecast is made from."""
    horizon_bars: int = Field(ge=1, le=1_000)
    """Bars that are forecast."""
    scaling: Literal["anchored", "ranged", "standard", "minmax"]
    """`anchored` to the last close; `ranged`: that, with targets in units of the recent range; or the
    lineage's `standard` and `minmax` price levels."""
    split: SplitSettings
    network: Annotated[pydantic.SerializeAsAny[NetworkSettings], BeforeValidator(_read_network)]
    tasks: Annotated[dict[str, TaskSettings], Field(min_length=1), refusing(_fault_of_tasks)]
    """What is forecast: `ohlc` (always), `bands` (bb_upper, bb_lower), `volatility`, `range` (bar_range,
    total_range)."""
    training: TrainingSettings
    calibration: Literal["ensemble", "none"]
    """`ensemble` averages the network's forecasts with a regression on past ranges and the hour, and with
    medians of simulated paths, with weights that are fitted to the validation span; `none` does not."""
    quantiles: Annotated[tuple[float, ...], refusing(_fault_of_quantiles)] = ()
    """Quantile levels between 0 and 1 that are forecast, too; the point forecast is the median."""
    covariates: tuple[TableSettings, ...] = ()
    """Tables of the user, from which features named `csv.COLUMN` come. Features of other series, such as
    `BTCUSDT.range_20`, need no entry."""
    seed: int = Field(ge=0, lt=2**31)
    """Seed of weights, shuffle and dropout; series number k of the universe trains with seed + k."""

    @staticmethod
    def of(name_or_path: str | Path) -> "Profile":
        """Read a shipped profile by name, or your own by the path of its file, as `load_profile` does."""
        return load_profile(str(name_or_path), where="profile")

    def but(self, **changes: Any) -> "Profile":
        """Return a copy of this profile with some keys changed, under a new name unless one is passed.

        A key of a section may be written without it: `learning_rate=3e-4` is
        `training={"learning_rate": 3e-4}`. A section keeps the keys that are not named, and None removes a
        task. Arrays of NumPy and pandas are used as lists.

        Raises:
            ProfileError: If there is no such key, or a value breaks a rule.
        """
        original: dict[str, Any] = self.model_dump()
        content = original
        base = _CHANGED.sub("", self.name)
        for key, value in _plain(changes, location=f"profile {self.name}").items():
            section, _, inner = key_places().get(key, key).rpartition(".")
            change = {section: {inner: value}} if section in _SHORTCUT_SECTIONS else {key: value}
            content = _merged(content, change)
        if "name" not in changes and content != original:
            digest = Profile(**content | {"name": base}).digest
            content["name"] = f"{base[:51]}-but-{digest[:8]}"
        return Profile(**content)

    @property
    def covariate_columns(self) -> tuple[str, ...]:
        """Columns of other series and of tables that features are computed from, such as `BTCUSDT.high`."""
        return indicators.covariate_inputs(self.features)

    def __dir__(self) -> list[str]:
        return [*Profile.model_fields, "but", "digest", "of"]

    def faults(self) -> Iterator[str]:
        """Yield contradictions between keys."""
        if self.quantiles and self.family.is_formula:
            yield (
                f"quantiles must be [] with family {self.network.family}, a formula that is published as one "
                "number a bar; as a baseline of networks it is evaluated with its quantiles"
            )
        yield from self._faults_of_covariates()
        yield from self._faults_of_windows()
        if self.scaling == "ranged" and c.RECENT_RANGE not in self.features:
            yield f"features must hold {c.RECENT_RANGE} with scaling: ranged, which divides by it"
        yield from self._faults_of_family()

    def _faults_of_covariates(self) -> Iterator[str]:
        named = [plain for origin, plain in map(c.split_origin, self.features) if origin == c.USER]
        listed = [name for table in self.covariates for name in table.columns]
        for name in named:
            if name not in listed:
                yield f"features name csv.{name}: covariates must hold a table with the column {name}"
        for name in listed:
            if name not in named:
                yield f"covariates hold the column {name}: features must name csv.{name}"
        for names in (listed, [table.file for table in self.covariates]):
            yield from (f"covariates must hold {name!r} once" for name in names if names.count(name) > 1)
        if self.scaling in ("standard", "minmax"):
            return
        for name in self.features:
            origin, _ = c.split_origin(name)
            close = c.with_origin(origin, c.CLOSE)
            if indicators.FEATURES[name].kind in ANCHORED_KINDS and close not in self.features:
                yield (
                    f"features must hold {close} with {name} and scaling: {self.scaling}, which measures "
                    f"prices of {origin} from it"
                )

    def _faults_of_windows(self) -> Iterator[str]:
        rolled = " or ".join(task.name for task in TASKS.values() if task.max_horizon_bars is not None)
        for task in self.shape.tasks:
            if self.lookback_bars < task.min_lookback_bars:
                names = f"{rolled}: their naive forecast needs that many closes"
                if task.is_size:
                    names = f"{task.name}: its naive forecast is the mean range of that many bars"
                yield f"lookback_bars must be at least {task.min_lookback_bars} with {names}"
            if task.max_horizon_bars is not None and self.horizon_bars > task.max_horizon_bars:
                yield (
                    f"horizon_bars must be at most {task.max_horizon_bars} with {rolled}: "
                    "further on, their naive forecast knows no close at all"
                )

    def _faults_of_family(self) -> Iterator[str]:
        family = self.family
        if self.lookback_bars < family.min_lookback_bars:
            yield f"lookback_bars must be at least {family.min_lookback_bars} with family {family.name}"
        if not family.is_formula:
            if not self.training.epochs:
                yield f"training.epochs must be at least 1 with family {family.name}"
            return
        fixed = {
            "training.epochs": (self.training.epochs, 0),
            "training.precision": (self.training.precision, "float32"),
            "calibration": (self.calibration, "none"),
            **{f"tasks.{name}.loss": (task.loss, "mae") for name, task in self.tasks.items()},
        }
        for key, (value, required) in fixed.items():
            if value != required:
                yield f"{key} must be {required} with family {family.name}, which is a formula"

    @pydantic.model_serializer(mode="wrap")
    def _without_empty_later_keys(self, write: pydantic.SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out empty keys that were added later: files and digests of older profiles stay the same."""
        content: dict[str, Any] = write(self)
        return {key: value for key, value in content.items() if key not in _LATER_KEYS or value}

    @property
    def family(self) -> Family:
        """The family of its network."""
        return FAMILIES[self.network.family]

    @property
    def shape(self) -> NetworkShape:
        """The shape of the network's input and output."""
        tasks = tuple(TASKS[name] for name in self.tasks)
        return NetworkShape(self.lookback_bars, self.features, self.horizon_bars, tasks)

    @property
    def uses_simulated_paths(self) -> bool:
        """Whether simulated paths influence the published forecasts or their quantiles."""
        return self.calibration == "ensemble" or bool(self.quantiles)

    @property
    def training_flop_per_window(self) -> float:
        """Floating-point operations of training on one window, as the network's family counts them.

        It costs three forward passes: forward, gradient of inputs, gradient of weights.

        >>> round(Profile.of("aligned").training_flop_per_window / 1e6)
        127
        """
        return 3 * self.family.forward_flop(self.network, self.shape)

    @property
    def embargo_bars(self) -> int:
        """Rows that are left out between two spans, so that no window is in both: lookback + horizon."""
        return self.lookback_bars + self.horizon_bars

    @property
    def digest(self) -> str:
        """Sha256 of the profile, 64 hex digits.

        Keys of the training that have their default are left out: the digest of a profile does not change
        when a key is added.
        """
        content = self.model_dump(mode="json")
        content["training"] = self.training.model_dump(mode="json", exclude_defaults=True)
        return digest_json({"format": PROFILE_FORMAT, **content})

    def with_budget(
        self, *, epochs: int | None = None, newest_bars: int | None = None, precision: str | None = None
    ) -> "Profile":
        """Return a copy of this profile with another budget; arguments that are None change nothing.

        A formula always has 0 epochs.

        Raises:
            ProfileError: If a value is out of its range.
        """
        training: dict[str, Any] = {}
        if self.family.is_formula:
            training["epochs"] = 0
        elif epochs is not None:
            training["epochs"] = epochs
        if precision is not None:
            training["precision"] = precision
        changes: dict[str, Any] = {"training": training}
        if newest_bars is not None:
            changes["newest_bars"] = newest_bars
        try:
            return self.but(name=self.name, **changes)
        except ProfileError as error:
            raise _of_parameter(error) from error


_BUDGET_KEYS: Final = {"newest_bars": "bars", "training.epochs": "epochs", "training.precision": "precision"}
"""Parameters of a run that replace keys of its profile, by key."""


def _of_parameter(error: ProfileError) -> ProfileError:
    """Let an error about a key name the parameter whose value it refuses."""
    parameter = _BUDGET_KEYS.get(error.where.rpartition(", key ")[2])
    if parameter is None:
        return error
    fix = f"Write another value after param:{parameter}, or leave it out"
    fix = fix if error.fix == _CHANGE_IT else error.fix
    return ProfileError(
        where=f"param:{parameter}, for the key {error.where.rpartition(' ')[2]}",
        rule=error.rule,
        got=error.got,
        fix=fix,
    )


def load_profile(name_or_path: str, where: str = "param:profile") -> Profile:
    """Read a shipped profile by name, or any profile by the path of its file, `.yaml` or `.yml`.

    Args:
        name_or_path: The name or the path.
        where: The parameter that named it, for the error.

    Raises:
        ProfileError: If there is no such file, or its content breaks a rule.
    """
    path = Path(name_or_path)
    if path.suffix not in (".yaml", ".yml"):
        names = profile_names()
        if name_or_path not in names:
            suggestion = advice(path.name, names, "Choose one of these")
            raise ProfileError(
                where=f"{where} {name_or_path}",
                rule=f"a shipped profile is one of {', '.join(names)}",
                got=repr(name_or_path),
                fix=f"{suggestion}; a file of your own needs its .yaml ending",
            )
        path = config_path(name_or_path)
    fix = "Check the path"
    if path.stem in profile_names():
        fix = f"Did you mean {where} {path.stem}, which is shipped"
    return checked_profile(read_yaml(path, fix), where=str(path))


def checked_profile(content: Any, *, where: str) -> Profile:
    """Make a profile from the content of a file or from arguments.

    Args:
        content: The content.
        where: Beginning of the error.

    Raises:
        ProfileError: If it breaks a rule.
    """
    plain = _plain(content, location=where)
    return checked(Profile, plain, where=where, fix=_fix, refusal=ProfileError)


def _merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return a section with changes; the keys of another network family are dropped."""
    is_same_family = new.get("family", old.get("family")) == old.get("family")
    merged = dict(old) if is_same_family else {}
    for key, value in new.items():
        section = merged.get(key) or {}
        # A value in the place of a section, or the other way round, is refused later by the checks.
        is_section = isinstance(value, Mapping) and isinstance(section, Mapping)
        merged[key] = _merged(section, value) if is_section else value
    return {key: value for key, value in merged.items() if value is not None or key not in TASKS}


def network_outputs(profile: Profile) -> NetworkOutputs:
    """Return the function that builds a profile's network; a `ProfileError` if it is a formula."""
    if profile.family.outputs is None:
        raise ProfileError(
            where=f"profile {profile.name}",
            rule="must have a network, for this is about training one",
            got=f"the formula {profile.network.family}, which is fitted",
            fix="Name another profile, such as aligned",
        )
    return profile.family.outputs


_NO_PROFILES: Final = ("references", "universe")  # files of configs/ that are something else


def profile_names() -> list[str]:
    """List the shipped profiles by name, sorted."""
    return sorted(path.stem for path in _configs().glob("*.yaml") if path.stem not in _NO_PROFILES)


def audiences() -> dict[str, str]:
    """Return for whom each shipped profile is, by name; the default profile comes first."""
    return read_yaml(Path(__file__).with_name("profiles.yaml"))


def config_path(name: str) -> Path:
    """Return the path of the shipped file `name`.yaml; it need not exist."""
    return _configs() / f"{name}.yaml"


def shipped_place(file: str) -> str:
    """Return where a shipped file is, such as `search/frontier.yaml`, as short as this folder lets it be."""
    path = _configs() / file
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _configs() -> Path:
    package = Path(__file__).parents[1]
    installed = package / "configs"
    return installed if installed.is_dir() else package.parent / "configs"


def recorded_profile(content: Any, *, where: str) -> Profile:
    """Read a profile from its recorded JSON values; a `ProfileError` if this version cannot read it."""
    return checked_profile(content if isinstance(content, dict) else {}, where=where)


def is_digest_of(digest: str, content: Mapping[str, Any]) -> bool:
    """Return whether a digest is that of a recorded profile.

    Args:
        digest: The digest, 64 hex digits.
        content: The profile as JSON values, unchanged since they were read.
    """
    training = content.get("training")
    if not isinstance(training, dict):
        return False
    defaults = {name: field.default for name, field in TrainingSettings.model_fields.items()}
    # As in `Profile.digest`: keys that have their default are left out.
    changed = {key: value for key, value in training.items() if key not in defaults or defaults[key] != value}
    return digest == digest_json({"format": PROFILE_FORMAT, **content, "training": changed})


def recorded_tables(content: Sequence[Any], *, where: str) -> tuple[TableSettings, ...]:
    """Read the key `covariates` of a profile from its recorded JSON values."""
    fix = "Restore the file or train the series again"
    return checked(tuple[TableSettings, ...], _tuples(content), where=where, fix=fix, refusal=ProfileError)


def _tuples(value: Any) -> Any:
    """Convert lists to tuples, which frozen models need."""
    if isinstance(value, dict):
        return {key: _tuples(item) for key, item in value.items()}
    return tuple(_tuples(item) for item in value) if isinstance(value, list | tuple) else value


@dataclass(frozen=True)
class _UnsupportedValue:
    """Replaces a value of a type that no key accepts, until the check of its key refuses it."""

    kind: str  # name of its type

    def __repr__(self) -> str:
        return f"a value of type {shown(self.kind)}"


def _plain(content: Any, *, location: str, key: str = "", depth: int = 0) -> Any:
    """Convert arguments to plain values: lists and arrays to tuples, numbers of NumPy to Python's.

    Raises:
        ProfileError: If it holds too many values, too many within each other, or a key that is no text.
    """
    value = _without_arrays(content)
    if value is None or isinstance(value, bool | int | float | str | Settings | _UnsupportedValue):
        return value
    if not isinstance(value, list | tuple | Mapping):
        return _UnsupportedValue(type(content).__name__)
    is_mapping = isinstance(value, Mapping)
    if depth > MAX_YAML_DEPTH:
        rule = f"holds values at most {MAX_YAML_DEPTH} deep"
    elif len(value) > MOST_VALUES:
        rule = f"holds at most {MOST_VALUES:,} values"
    elif is_mapping and not all(isinstance(name, str) for name in value):
        rule = "names its keys by texts"
    else:
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        plain = {
            name: _plain(item, location=location, key=f"{key}.{name}" if key else str(name), depth=depth + 1)
            for name, item in items
        }
        return plain if is_mapping else tuple(plain.values())
    raise ProfileError(
        where=under_key(location, shown(key)),
        rule=rule,
        got=f"a {shown(type(content).__name__)}",
        fix=_CHANGE_IT,
    )


def _without_arrays(content: Any) -> Any:
    """Convert an array of NumPy or pandas to lists, and a number of NumPy to Python's."""
    if not hasattr(content, "dtype"):
        return content
    if not getattr(content, "ndim", 0):
        number = content.item() if hasattr(content, "item") else content
        is_python = not hasattr(number, "dtype")  # Python has no float of more than 64 bits
        return number if is_python else _UnsupportedValue(type(content).__name__)
    is_array = hasattr(content, "tolist") and content.size <= MOST_VALUES
    return content.tolist() if is_array else content


def _fix(error: ValidationError) -> str:
    """Return the advice for pydantic's error about a profile, and the number of further faults."""
    first = first_error(error)
    location = first["loc"]
    same_fault = [location]
    if first["type"] == "extra_forbidden":
        *sections, unknown = map(str, location)
        suggestion = nearest(unknown, _innermost_settings(sections).model_fields)
        # If this key was meant, pydantic also reports it as missing: that is the same fault.
        same_fault.append((*location[:-1], suggestion))
        if not suggestion:  # a key of another section may have been meant
            places = key_places()
            suggestion = places.get(nearest(unknown, places) or "")
        fix = f"Did you mean {suggestion}" if suggestion else f"Remove it; {_every_key()}"
    elif first["type"] == "missing":
        fix = f"Add it; {_every_key()}"
    else:
        choices = re.findall("'([^']+)'", first.get("ctx", {}).get("expected", ""))
        fix = advice(str(first["input"]), choices, _CHANGE_IT)
    num_others = sum(fault["loc"] not in same_fault for fault in error.errors())
    return f"{fix} ({num_others} more to fix after this one)" if num_others else fix


def _every_key() -> str:
    return f"{shipped_place('aligned.yaml')} shows every key"


def _innermost_settings(sections: Sequence[str]) -> type[Settings]:
    """Return the settings of the innermost section of a location in a profile."""
    by_name = _SECTIONS | {family.name: family.settings for family in FAMILIES.values()}
    for section in reversed(sections):
        if section in by_name:
            return by_name[section]
    return Profile


_SECTIONS: Final[dict[str, type[Settings]]] = {
    "split": SplitSettings,
    "training": TrainingSettings,
    "tasks": TaskSettings,
    "covariates": TableSettings,
}


def key_places() -> dict[str, str]:
    """Return the place of every key of a profile, such as `training.learning_rate`, by its name."""
    places = {key: f"network.{key}" for family in FAMILIES.values() for key in family.settings.model_fields}
    for section, settings in _SECTIONS.items():
        places |= {key: f"{section}.{key}" for key in settings.model_fields}
    return places | {key: key for key in Profile.model_fields}
