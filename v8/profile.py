"""Profiles: what to train, one complete YAML file each, checked, frozen and identified by a digest.

There is no inheritance, and every shipped file holds the same keys, so a plain diff of two files is the whole
difference between two models. Only keys that came later have defaults, for files written before. Flags of
the command line choose where and how far a profile runs; they never change what it is, except through
`Profile.with_budget`, which changes the digest too.
"""

import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal

import pydantic
import yaml
from pydantic import AfterValidator, BeforeValidator, Field, ValidationError

from v8 import columns as c
from v8.errors import ProfileError, shown
from v8.families import FAMILIES
from v8.families.family import Family, NetworkOutputs, NetworkSettings, NetworkShape
from v8.features import indicators
from v8.features.formulas import ANCHORED_KINDS
from v8.quantile_levels import fault_of
from v8.records import Settings, adapter, checked, first_error, read_plain, refusing, under_key
from v8.registry import advice, nearest, or_rather
from v8.storage import digest_json
from v8.tasks import TASKS

PROFILE_FORMAT = 2  # version of the key set below; part of the digest
MAX_YAML_BYTES: Final = 65_536  # the longest shipped profile has 2,000; the library reads 100,000 a second
MAX_YAML_DEPTH: Final = 8  # lists and mappings within each other; a profile has four
MOST_VALUES: Final = 10_000  # in a list; a profile has some hundred

ProfileName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")]
"""Small letters, digits, dash and underscore: it names folders."""

FORMER_CALIBRATIONS: Final = ("shrink", "blend")
"""Models from before were published with these; they forecast as ever, but none is trained any more."""

Schedule = Literal["constant", "plateau", "cosine", "step"]

TABLES_PLACE: Final = "V8_TABLES"
"""Environment variable that names the folder of users' tables, as `--tables` does; else the current one."""

MOST_TABLE_S: Final = 10 * 366 * 86_400  # ten years: longest delay and age of a row of a user's table
HUBER_TURN: Final = 1.0  # residual, in scaled units, at which `huber` goes from squared to absolute

_CHANGED: Final = re.compile(r"-but-[0-9a-f]{8}$")
"""Ends the name of a profile that was changed: equal changes have equal names, and so one run folder."""

_ALONE: Final = ("network", "split", "training")  # sections whose keys may stand alone: no other has such

_LATER: Final = ("quantiles", "covariates")  # keys that came after profiles were published without them


class SplitSettings(Settings):
    """How the rows of a series are divided, in time order."""

    train: float = Field(gt=0, lt=1)
    """Share of the rows that fit weights and scaling, between 0 and 1."""
    validation: float = Field(gt=0, lt=1)
    """Share that decides when to stop and which epoch to keep, between 0 and 1."""
    test: float = Field(gt=0, lt=1)
    """Share that is forecast once, for the report, between 0 and 1."""

    def faults(self) -> Iterator[str]:
        """Yield what shares forbid each other."""
        if abs(self.train + self.validation + self.test - 1) > 1e-9:
            yield "train, validation and test must add up to 1"


class TaskSettings(Settings):
    """One thing to forecast."""

    weight: float = Field(gt=0)
    """Factor of this task's loss in the sum, unitless."""
    loss: Literal["mae", "mse", "huber"]
    """`mae` forecasts the median, `mse` the mean, `huber` lies between (it turns at 1 deviation)."""


def _of_its_family(network: Any) -> Any:
    """Read a network as the family that it names asks: one of those registered by now."""
    if isinstance(network, NetworkSettings):
        return network
    name = network.get("family") if isinstance(network, dict) else None
    if name is None:
        raise ValueError(f"must name its family, one of {', '.join(FAMILIES)}")
    if str(name) not in FAMILIES:
        raise ValueError(
            f"{name!r} is no network family, which are {', '.join(FAMILIES)}{or_rather(str(name), FAMILIES)}"
        )
    # As a mapping, so that errors name the family too: key network.lstm_dense.dropout.
    kind: Any = dict[str, FAMILIES[name].settings]  # type: ignore[misc]
    return adapter(kind).validate_python({name: _tuples(network)})[name]


def _of_today(calibration: str, info: pydantic.ValidationInfo) -> str:
    """Refuse a calibration that there is not; what a run recorded may have one of before."""
    known = ("ensemble", "none", *(FORMER_CALIBRATIONS if info.context else ()))
    if calibration not in known:
        gone = " (shrink and blend are not trained any more)" if calibration in FORMER_CALIBRATIONS else ""
        raise ValueError(f"must be 'ensemble' or 'none'{gone}")
    return calibration


_Names = Annotated[tuple[str, ...], Field(min_length=1), AfterValidator(indicators.plain_names)]


def _fault_of_features(features: tuple[str, ...]) -> str | None:
    num = len(c.neighbours(features))
    if num > c.MOST_NEIGHBOURS:
        return f"must name features of at most {c.MOST_NEIGHBOURS} other series, not {num}"
    missing = ", ".join(name for name in c.OHLC if name not in features)
    return f"must hold open, high, low, close; missing: {missing}" if missing else None


def _fault_of_tasks(tasks: dict[str, TaskSettings]) -> str | None:
    strange = next((name for name in tasks if name not in TASKS), None)
    if strange:
        return f"{strange!r} is no task, which are {', '.join(TASKS)}{or_rather(strange, TASKS)}"
    lacking = "must hold ohlc: the candles are what everything else is drawn on"
    return None if c.TASK_OHLC in tasks else lacking


class TrainingSettings(Settings):
    """How the weights are fitted."""

    batch_size: int = Field(ge=1, le=65_536)
    """Windows per optimiser step."""
    epochs: int = Field(ge=0, le=100_000)
    """Most passes over the train span; early stopping may end sooner. 0 for a formula, which is fitted."""
    learning_rate: float = Field(gt=0, le=1)
    """Step size at the start, unitless."""
    optimizer: Literal["adam", "adamw"] = "adam"
    """`adam`, or `adamw` with `weight_decay`."""
    weight_decay: float = Field(default=0.0, ge=0, lt=1)
    """Share of every weight that a step takes off, times the learning rate (decoupled)."""
    schedule: Schedule = "plateau"
    """Of the learning rate: `constant`; `plateau` and `step` by the two reduce_lr keys; `cosine` to zero."""
    warmup_epochs: float = Field(default=0.0, ge=0, le=100_000)
    """Epochs in which the learning rate rises from nothing, step by step; 0 begins with all of it."""
    clip_norm: float | None = Field(gt=0)
    """Largest gradient of a model, unitless; null leaves it as it is."""
    gradient_clip: Literal["global_norm", "value"] = "global_norm"
    """What `clip_norm` bounds: the norm of a model's whole gradient, or the size of each `value` of it."""
    gradient_accumulation: int = Field(default=1, ge=1, le=1_024)
    """Batches whose gradients make one optimiser step, as one larger batch would, in less memory."""
    cpu_batch_size: int | None = Field(default=None, ge=1, le=65_536)
    """`batch_size` where a CPU trains, which gathers as many more of them: a step has the same windows on
    both, and the model is the same; null: as on a GPU."""
    checkpoint_activations: bool = False
    """Keep little of a forward pass and work the rest out again for the gradient: less memory, more time."""
    early_stopping_patience_epochs: int = Field(ge=1)
    """Epochs without a better validation loss before training ends; the best weights are kept."""
    reduce_lr_factor: float = Field(gt=0, lt=1)
    """The learning rate is multiplied by this on a plateau, or at every step of schedule `step`."""
    reduce_lr_patience_epochs: int = Field(ge=1)
    """Epochs without a better validation loss before that; with schedule `step`, epochs between steps."""
    precision: Literal["auto", "float32", "mixed_float16", "mixed_bfloat16"]
    """`auto` asks the machine; `mixed_*` compute in 16 bits with float32 weights, heads and loss."""

    @property
    def windows_per_step(self) -> int:
        """Windows of one optimiser step."""
        return self.batch_size * self.gradient_accumulation

    def num_parts(self, *, is_on_gpu: bool) -> int:
        """Return how many batches make one optimiser step there."""
        if is_on_gpu or self.cpu_batch_size is None:
            return self.gradient_accumulation
        return self.windows_per_step // self.cpu_batch_size

    def faults(self) -> Iterator[str]:
        """Yield what one of these keys forbids another."""
        if self.windows_per_step % (self.cpu_batch_size or 1):
            yield (
                f"cpu_batch_size must divide the {self.windows_per_step} windows of a step, "
                "which are batch_size x gradient_accumulation"
            )
        if self.weight_decay and self.optimizer != "adamw":
            yield "optimizer must be adamw with a weight_decay above 0"


class TableSettings(Settings):
    """A table of the user's whose columns are features named `csv.` and the column's name."""

    file: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}\.csv$")
    """Name of a CSV file, without a folder: `--tables` tells that, and the profile may go elsewhere."""
    time: str = Field(min_length=1, max_length=100)
    """Column of the times: seconds to nanoseconds since the epoch, or ISO 8601 text with its zone."""
    columns: tuple[Annotated[str, Field(pattern=rf"^{c.COLUMN_PATTERN}$")], ...] = Field(min_length=1)
    """Columns of numbers that features are made of."""
    available_after_s: int = Field(ge=0, le=MOST_TABLE_S)
    """Seconds after its time from which on a row was known to everybody; 0 for a time of publication."""
    max_age_s: int = Field(gt=0, le=MOST_TABLE_S)
    """Seconds after its time until which a row counts; bars that close later have no value, as in a hole."""

    def faults(self) -> Iterator[str]:
        """Yield that no row would ever count."""
        if self.max_age_s < self.available_after_s:
            yield "max_age_s must be at least available_after_s, or no row would ever count"


class _Checking(type(pydantic.BaseModel)):  # type: ignore[misc]
    """Lets whoever makes a profile of keywords read our errors, not those of the library that checks them."""

    def __call__(cls, *names: str, **content: Any) -> Any:
        if names:
            return Profile.of(*names).but(**content)
        return checked_profile(content, where=f"profile {content.get('name', 'without a name')}")


class Profile(Settings, metaclass=_Checking):
    """What to train, completely described; it is never changed itself.

    >>> profile = Profile.of("frontier").but(learning_rate=3e-4, training={"epochs": 3})
    >>> profile.training.learning_rate, profile.training.epochs
    (0.0003, 3)
    """

    name: ProfileName
    """Folder name of its runs: small letters, digits, dash and underscore."""
    description: str = Field(min_length=1, max_length=1_000)
    """One sentence for the model card."""
    newest_bars: int = Field(ge=100, le=10_000_000)
    """Candles used per series, counted back from the newest closed one."""
    features: Annotated[_Names, refusing(indicators.fault_of), refusing(_fault_of_features)]
    """Input columns by name, in the order of the network's last axis; input width follows from it."""
    lookback_bars: int = Field(ge=2, le=10_000)
    """Rows a forecast looks at."""
    horizon_bars: int = Field(ge=1, le=1_000)
    """Rows a forecast covers."""
    scaling: Literal["anchored", "ranged", "standard", "minmax"]
    """`anchored` to the last close; `ranged`: that, with targets in units of the recent range; or the
    lineage's `standard` and `minmax` price levels."""
    split: SplitSettings
    network: Annotated[pydantic.SerializeAsAny[NetworkSettings], BeforeValidator(_of_its_family)]
    tasks: Annotated[dict[str, TaskSettings], Field(min_length=1), refusing(_fault_of_tasks)]
    """What is forecast: `ohlc` (always), `bands` (bb_upper, bb_lower), `volatility`."""
    training: TrainingSettings
    calibration: Annotated[str, AfterValidator(_of_today)]
    """`ensemble` mixes forecasts with a regression on past ranges and the hour and with medians of paths, as
    far as the validation span demands; `none` leaves them."""
    quantiles: Annotated[tuple[float, ...], refusing(lambda levels: levels and fault_of(levels))] = ()
    """Levels between 0 and 1 that are forecast beside the point forecast, which is their median; none without
    the key."""
    covariates: tuple[TableSettings, ...] = ()
    """Tables of the user's that features named `csv.COLUMN` come from; none without the key. Features of
    other series, such as `BTCUSDT.range_20`, need no entry."""
    seed: int = Field(ge=0, lt=2**31)
    """Seed of weights, shuffle and dropout; series number k of the universe trains with seed + k."""

    @staticmethod
    def of(name_or_path: str | Path) -> "Profile":
        """Read a shipped profile by name, or your own by the path of its file, as `load_profile` does."""
        return load_profile(str(name_or_path), where="profile")

    def but(self, **changes: Any) -> "Profile":
        """Return this profile with some keys changed, under a name of its own unless one is given.

        A key of a section may stand alone: `learning_rate=3e-4` is `training={"learning_rate": 3e-4}`. A
        section keeps what is not named, and None takes a task away. Arrays of NumPy and pandas are taken as
        lists. Raises `ProfileError` if there is no such key, or a value breaks a rule.
        """
        own: dict[str, Any] = self.model_dump()
        content = own
        base = _CHANGED.sub("", self.name)
        for key, value in _plain(changes, where=f"profile {self.name}").items():
            section, _, inner = key_places().get(key, key).rpartition(".")
            content = _merged(content, {section: {inner: value}} if section in _ALONE else {key: value})
        if "name" not in changes and content != own:
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
        """Yield what some keys ask that others forbid."""
        if self.quantiles and self.family.is_formula:
            yield (
                f"quantiles must be [] with family {self.network.family}, a formula that is published as one "
                "number a bar; beside a network's quantiles its own are evaluated anyway"
            )
        yield from self._faults_of_covariates()
        yield from self._faults_of_windows()
        if self.scaling == "ranged" and c.RECENT_RANGE not in self.features:
            yield f"features must hold {c.RECENT_RANGE} with scaling: ranged, which divides by it"
        yield from self._faults_of_family()

    def _faults_of_covariates(self) -> Iterator[str]:
        named = [plain for origin, plain in map(c.split_origin, self.features) if origin == c.USER]
        told = [name for one in self.covariates for name in one.columns]
        for name in named:
            if name not in told:
                yield f"features name csv.{name}: covariates must hold a table with the column {name}"
        for name in told:
            if name not in named:
                yield f"covariates hold the column {name}: features must name csv.{name}"
        for each in (told, [table.file for table in self.covariates]):
            yield from (f"covariates must hold {name!r} once" for name in each if each.count(name) > 1)
        if self.scaling in ("standard", "minmax"):
            return
        for name in self.features:
            origin = c.split_origin(name)[0]
            close = c.with_origin(c.split_origin(name)[0], c.CLOSE)
            if indicators.FEATURES[name].kind in ANCHORED_KINDS and close not in self.features:
                yield (
                    f"features must hold {close} with {name} and scaling: {self.scaling}, which measures "
                    f"prices of {origin} from it"
                )

    def _faults_of_windows(self) -> Iterator[str]:
        rolled = " or ".join(task.name for task in TASKS.values() if task.max_horizon_bars is not None)
        for task in self.shape.tasks:
            if self.lookback_bars < task.min_lookback_bars:
                yield (
                    f"lookback_bars must be at least {task.min_lookback_bars} with {rolled}: "
                    "their naive forecast needs that many closes"
                )
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
        for key, (found, needed) in fixed.items():
            if found != needed:
                yield f"{key} must be {needed} with family {family.name}, which is a formula"

    @pydantic.model_serializer(mode="wrap")
    def _without_what_is_not_asked(self, write: pydantic.SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out keys that came later where they are empty: files and digests are those from before."""
        content: dict[str, Any] = write(self)
        return {key: value for key, value in content.items() if key not in _LATER or value}

    @property
    def family(self) -> Family:
        """What its network is made by."""
        return FAMILIES[self.network.family]

    @property
    def shape(self) -> NetworkShape:
        """What the network reads and returns."""
        tasks = tuple(TASKS[name] for name in self.tasks)
        return NetworkShape(self.lookback_bars, self.features, self.horizon_bars, tasks)

    @property
    def has_paths(self) -> bool:
        """Whether paths of past bars move the published forecasts, or say their quantiles."""
        return self.calibration == "ensemble" or bool(self.quantiles)

    @property
    def embargo_bars(self) -> int:
        """Rows left out between two spans so that no window touches both: lookback + horizon."""
        return self.lookback_bars + self.horizon_bars

    @property
    def digest(self) -> str:
        """Sha256 of the whole profile, 64 hex digits.

        A key that came later counts where it differs from what was done before it came, its default.
        """
        content = self.model_dump(mode="json")
        content["training"] = self.training.model_dump(mode="json", exclude_defaults=True)
        return digest_json({"format": PROFILE_FORMAT, **content})

    def with_budget(
        self, *, epochs: int | None = None, newest_bars: int | None = None, precision: str | None = None
    ) -> "Profile":
        """Return this profile with another budget, checked again; what is None stays as it is.

        A formula has no epochs. A ProfileError tells of a value that is out of its range.
        """
        training = {"epochs": 0 if self.family.is_formula else epochs, "precision": precision}
        bars = {} if newest_bars is None else {"newest_bars": newest_bars}
        asked = {"training": {key: value for key, value in training.items() if value is not None}, **bars}
        return self.but(name=self.name, **asked)


def load_profile(name_or_path: str, where: str = "param:profile") -> Profile:
    """Read a shipped profile by name, or any profile by the path of its file, `.yaml` or `.yml`.

    A ProfileError tells that there is no such file, or that its content breaks a rule.
    """
    path = Path(name_or_path)
    if path.suffix not in (".yaml", ".yml"):
        if name_or_path not in (names := profile_names()):
            rather = advice(name_or_path, names, "Choose one of these")
            where = f"{where} {name_or_path}"
            rule = f"a shipped profile is one of {', '.join(names)}"
            fix = f"{rather}; a file of your own needs its .yaml ending"
            raise ProfileError(where=where, rule=rule, got=repr(name_or_path), fix=fix)
        path = config_path(name_or_path)
    return checked_profile(read_yaml(path), where=str(path))


def checked_profile(content: Any, *, where: str, context: str = "") -> Profile:
    """Make a profile of what somebody wrote; a ProfileError, begun with `where`, if it breaks a rule."""
    plain = _plain(content, where=where)
    return checked(Profile, plain, where=where, fix=_fix, refusal=ProfileError, context=context)


def _merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return a section with what is new in it; another network family begins anew."""
    kept = {} if new.get("family", old.get("family")) != old.get("family") else dict(old)
    for key, value in new.items():
        section = kept.get(key) or {}
        # What stands where a section belongs, or a section where a value does, is refused by the checks.
        is_section = isinstance(value, Mapping) and isinstance(section, Mapping)
        kept[key] = _merged(section, value) if is_section else value
    return {key: value for key, value in kept.items() if value is not None or key not in TASKS}


def require_trainable(profile: Profile) -> None:
    """Raise a ProfileError if a recorded profile has a calibration of before, which nothing fits any more."""
    if profile.calibration in FORMER_CALIBRATIONS:
        where = f"profile {profile.name}, key calibration"
        got = repr(profile.calibration)
        rule = "must be 'ensemble' or 'none' to be trained; models of before forecast as ever"
        raise ProfileError(where=where, rule=rule, got=got, fix="Train a profile with calibration: ensemble")


def network_outputs(profile: Profile) -> NetworkOutputs:
    """Return what makes the layers of a profile's network; a ProfileError where it is a formula."""
    if profile.family.outputs is None:
        where = f"profile {profile.name}"
        rule = "must have a network, for this is about training one"
        got = f"the formula {profile.network.family}, which is fitted"
        raise ProfileError(where=where, rule=rule, got=got, fix="Name another profile, such as aligned")
    return profile.family.outputs


def profile_names() -> list[str]:
    """List the shipped profiles by name, sorted."""
    return sorted(path.stem for path in _configs().glob("*.yaml") if path.stem != "universe")


def audiences() -> dict[str, str]:
    """Say of each shipped profile for whom it is, the one that is trained unasked first."""
    return read_yaml(Path(__file__).with_name("profiles.yaml"))


def config_path(name: str) -> Path:
    """Return where the shipped file `name`.yaml lies; it need not exist."""
    return _configs() / f"{name}.yaml"


def read_yaml(path: Path, fix: str = "Check the path") -> dict[str, Any]:
    """Read a YAML mapping of plain values; see `_Loader` for what is refused. `5e-4` is a number.

    A ProfileError tells that a file cannot be read, is too long, is not such YAML, or is no mapping.
    """
    text = read_plain(path, fix=fix, most_bytes=MAX_YAML_BYTES, kind=ProfileError)
    try:
        # Not `safe_load`: _Loader derives from the same SafeLoader and knows less.
        content = yaml.load(text.decode("utf-8-sig"), Loader=_Loader)  # noqa: S506
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # its own, and of `chr` and `int` in escapes
        told = str(error)
        if isinstance(error, yaml.MarkedYAMLError):
            mark: Any = error.problem_mark or error.context_mark
            told = f"{error.problem or error.context}{f', line {mark.line + 1}' if mark else ''}"
        rule = "must be YAML of plain values, each key once"
        fix = "Mend the file at that line"
        raise ProfileError(where=str(path), rule=rule, got=told, fix=fix) from error
    if not isinstance(content, dict):
        got = type(content).__name__
        fix = "Start from a file under configs/"
        raise ProfileError(where=str(path), rule="must hold keys and values", got=got, fix=fix)
    return content


class _Loader(yaml.SafeLoader):
    """Reads texts, numbers, true, false and null in lists and mappings, as JSON has them; nothing else.

    An anchor could stand for a million values or for itself, a tag for an object, a date for a price, `010`
    for 8: none is guessed. What looks like one stays text, which the profile's own types then refuse.
    """

    yaml_implicit_resolvers: ClassVar[dict[str | None, list[Any]]] = {}  # type: ignore[misc]
    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            raise _fault("anchors (&) and aliases (*) are not read: write each value where it belongs", event)
        if event.tag is not None:
            raise _fault("tags (!) are not read: write plain values", event)
        if self._depth == MAX_YAML_DEPTH:
            raise _fault(f"lists and mappings are read {MAX_YAML_DEPTH} deep", event)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise _fault("a key must be a word", key_node)
            if key in seen:
                raise _fault(f"key {shown(repr(key))} is repeated", key_node)
            seen.add(key)
        return super().construct_mapping(node, deep)


for _kind, _pattern, _first in (
    ("null", r"^(?:~|null)?$", ["~", "n", ""]),
    ("bool", r"^(?:true|false)$", ["t", "f"]),
    ("int", r"^[-+]?(?:0|[1-9][0-9]{0,17})$", list("-+0123456789")),
    (
        "float",
        r"^[-+]?(?=[.0-9]*[.eE])[0-9]{0,40}\.?[0-9]{0,40}(?<=[.0-9])(?:[eE][-+]?[0-9]{1,4})?$",
        list("-+.0123456789"),
    ),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", re.compile(_pattern), _first)


def _fault(problem: str, place: yaml.Event | yaml.Node) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=place.start_mark)  # type: ignore[arg-type]


def _configs() -> Path:
    installed = Path(__file__).parent / "configs"
    return installed if installed.is_dir() else Path(__file__).parent.parent / "configs"


def recorded_profile(content: Any, *, where: str) -> Profile:
    """Read a profile from what was recorded of it as JSON; a ProfileError if it is none of this v8."""
    return checked_profile(content if isinstance(content, dict) else {}, where=where, context="recorded")


def is_digest_of(digest: str, content: Mapping[str, Any]) -> bool:
    """Tell whether a digest is that of a profile as a file recorded it, with the keys and format it had then.

    The content is the profile as JSON values, unchanged since they were read.
    """
    later = {name: one.default for name, one in TrainingSettings.model_fields.items()}
    training = content.get("training")
    if not isinstance(training, dict):
        return False
    asked = {key: value for key, value in training.items() if key not in later or later[key] != value}
    formats = range(1, PROFILE_FORMAT + 1)
    return digest in (digest_json({"format": each, **content, "training": asked}) for each in formats)


def recorded_tables(content: Sequence[Any], *, where: str) -> tuple[TableSettings, ...]:
    """Read the key `covariates` of a profile from what an artefact recorded of it as JSON."""
    fix = "Restore the file or train the series again"
    return checked(tuple[TableSettings, ...], _tuples(content), where=where, fix=fix, refusal=ProfileError)


def _tuples(value: Any) -> Any:
    """Turn lists into tuples, which frozen models hold."""
    if isinstance(value, dict):
        return {key: _tuples(item) for key, item in value.items()}
    return tuple(_tuples(item) for item in value) if isinstance(value, list | tuple) else value


@dataclass(frozen=True)
class _Stranger:
    """Stands for a value that no key holds, until the check of its key refuses it."""

    kind: str  # name of its type

    def __repr__(self) -> str:
        return f"a value of type {shown(self.kind)}"


def _plain(content: Any, *, where: str, key: str = "", depth: int = 0) -> Any:
    """Turn what a program may write into plain values: lists and arrays to tuples, numbers to Python's.

    Raises:
        ProfileError: If it holds too many values, too many within each other, or a key that is no text.
    """
    value = _without_arrays(content)
    if value is None or isinstance(value, bool | int | float | str | Settings | _Stranger):
        return value
    if not isinstance(value, list | tuple | Mapping):
        return _Stranger(type(content).__name__)
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
            name: _plain(item, where=where, key=f"{key}.{name}" if key else str(name), depth=depth + 1)
            for name, item in items
        }
        return plain if is_mapping else tuple(plain.values())
    got = f"a {shown(type(content).__name__)}"
    fix = "Change it in the profile"
    raise ProfileError(where=under_key(where, shown(key)), rule=rule, got=got, fix=fix)


def _without_arrays(content: Any) -> Any:
    """Return an array of NumPy or pandas as lists, and a number of theirs as Python's."""
    if not hasattr(content, "dtype"):
        return content
    if not getattr(content, "ndim", 0):
        number = content.item() if hasattr(content, "item") else content
        is_python = not hasattr(number, "dtype")  # which has no float of more than 64 bits
        return number if is_python else _Stranger(type(content).__name__)
    is_array = hasattr(content, "tolist") and content.size <= MOST_VALUES
    return content.tolist() if is_array else content


def _fix(error: ValidationError) -> str:
    first = first_error(error)
    meant = None
    is_unknown = first["type"] == "extra_forbidden"
    if is_unknown:
        *location, unknown = map(str, first["loc"])
        sections = _SECTIONS | {one.name: one.settings for one in FAMILIES.values()}
        section = next((sections[part] for part in reversed(location) if part in sections), Profile)
        meant = nearest(unknown, section.model_fields)
    others = [one for one in error.errors() if one["loc"] not in (first["loc"], (*first["loc"][:-1], meant))]
    if is_unknown:
        meant = meant or key_places().get(nearest(unknown, key_places()) or "")
        fix = f"Did you mean {meant}" if meant else "Remove it; configs/aligned.yaml shows every key"
    elif first["type"] == "missing":
        fix = "Add it; configs/aligned.yaml shows every key"
    else:
        words = re.findall("'([^']+)'", first.get("ctx", {}).get("expected", ""))
        fix = advice(str(first["input"]), words, "Change it in the profile")
    return fix + (f" ({len(others)} more to mend after this one)" if others else "")


_SECTIONS: Final[dict[str, type[Settings]]] = {
    "split": SplitSettings,
    "training": TrainingSettings,
    "tasks": TaskSettings,
    "covariates": TableSettings,
}


def key_places() -> dict[str, str]:
    """Say of every key of a profile where it stands, such as `training.learning_rate`."""
    places = {key: f"network.{key}" for one in FAMILIES.values() for key in one.settings.model_fields}
    for section, settings in _SECTIONS.items():
        places |= {key: f"{section}.{key}" for key in settings.model_fields}
    return places | {key: key for key in Profile.model_fields}
