"""Forecasts of anything on one board: `v8.evaluate`.

Each kind of method has a function that returns its forecasts for windows of the test span of a series, as
arrays of shape (N, H) by column in the unit of the column; NaN where it forecasts nothing. The board
(`v8.model.evaluation.board`) compares them.
"""

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from v8.api.arguments import checked_argument, in_python, series_list, source_of
from v8.api.board import Board, BoardOrigin, Method
from v8.api.forecaster import UNNAMED, Forecaster, joined_candles, span_dataset
from v8.api.runs import Run, train
from v8.base.arrays import FloatArray
from v8.base.errors import ArgumentError, listed
from v8.base.process import quiet_start
from v8.base.registry import nearest
from v8.data.features import compute_table
from v8.data.market.candles import Candles
from v8.data.market.companions import Companions
from v8.data.market.frames import RawCandles
from v8.data.market.series import Series, is_series_name, iso
from v8.data.market.sources import open_source
from v8.data.span import Span
from v8.data.windows import SeriesData, prepare_series, table_columns, whole_span
from v8.model.baselines.baselines import BASELINES, NAIVE, reference_baseline
from v8.model.evaluation.board import KEYS, SeriesForecasts, in_windows
from v8.profile.columns import CLOSE
from v8.profile.profile import Profile, load_profile, profile_names
from v8.profile.tasks import TASKS
from v8.publish.hub.places import ModelPlace, is_repository, open_place
from v8.runs.options import chosen_series, served_series

_WHERE: Final = "v8.evaluate, forecasts="
_HELP: Final = "help(v8.evaluate) says what each may be"
_NO_METHODS: Final = (*KEYS, "series", "index", "open_time", "issued_at", "fold")
"""Columns of a frame of forecasts that are no methods; the last ones are those of `v8.export`."""
_BOUND: Final = re.compile("-(lo|hi)-|_q[0-9.]+$")  # in the names of bounds of intervals, of quantiles

ByColumn: TypeAlias = dict[str, FloatArray]
"""Forecasts by column, shape (N, H), in the unit of the column."""


@in_python
def evaluate(
    forecasts: Any,
    candles: Candles | RawCandles | str | Path = "vision",
    profile: str | Path | Profile = "frontier",
    *,
    series: str | Sequence[str] | None = None,
    column: str | None = None,
    covariates: Mapping[str, Any] | None = None,
    about: Mapping[str, Any] | None = None,
    runs: str | Path = "runs",
) -> Board:
    """Put anything that forecasts the same candles on one board, with naive and the best baseline.

    The candles are divided as `v8.windows` divides them, and baselines are fitted to the train span. Methods
    are compared on the windows of the test span that all of them have, and on as many steps.

    Args:
        forecasts: A method, or a mapping from names to methods:

            * a Keras model that was fitted on `v8.windows`, with an output for each task, or a mapping from
              series to such models;
            * a frame in the layout of Nixtla's `cross_validation`, a row for each bar: `cutoff` (when the
              newest known candle opened), `ds` (when the forecast bar opens), a column of prices for each
              method; for several series `unique_id`, for several columns `column`, as `v8.export` has it;
            * a folder of a run or `user/name` on the Hub, or a `Run`: its models forecast the windows that
              are newer than their training;
            * the name of a baseline, also of one that a plug-in adds, such as "har" or "chronos";
            * a profile, which is trained first as by `v8.train`.
        candles: As for `v8.train` or `v8.windows`: a source, a folder, a frame of one series, a mapping of
            frames by series.
        profile: Divides the candles, as for `v8.windows`.
        series: Such as "BTCUSDT-15m", or several; None for all that there are. Needed for a frame of candles
            if one of the methods is by series: a run, or a frame of forecasts that has `unique_id`.
        column: What is evaluated, such as "close" or "volatility"; None for all columns of each task, or for
            the only one of a frame of forecasts ("close" if it has no `column`).
        covariates: As for `v8.windows`.
        about: By method what readers should know of a model of others: `kind`, `trained_until`, `licence`,
            `could_know_candles`. See `Board.methods`.
        runs: Folder of the runs of profiles that are trained.

    Returns:
        The board: `table`, `scores` of each series, `forecasts`, `methods`; `save(folder)` writes it as a
        page and as a data set.

    Raises:
        ArgumentError: If forecasts are of another kind, or share no whole window of the test span.
        DataError: If the candles cannot be read, or a span of them does not hold one window.

    >>> import v8
    >>> v8.evaluate({"mine": model, "theirs": frame}, candles).table  # doctest: +SKIP
    >>> board = v8.evaluate({"a": "runs/a", "b": "runs/b", "har": "har"}, "vision")  # doctest: +SKIP
    >>> board.save("boards/a-and-b")  # doctest: +SKIP
    """
    loaded = profile if isinstance(profile, Profile) else load_profile(str(profile))
    market = _market(candles, series_list(series), loaded, covariates)
    entrants = [_entrant(name, method, market, runs) for name, method in _named(forecasts).items()]
    names = Counter(name for entrant in entrants for name in entrant.names)
    if max(names.values()) > 1:
        rule = "has a name for each method"
        raise _refused(rule, f"{listed([name for name in names if names[name] > 1])} several times")
    for entrant in entrants:
        _require_own_names(entrant)
    columns = _columns(loaded, column or _only_column(entrants))
    by_series = []
    methods: dict[str, Method] = {}
    for name in market.series:
        table = compute_table(market.read(name, loaded), table_columns(loaded))
        windows = _Windows(name, prepare_series(table, loaded), columns, market)
        of_series: dict[str, ByColumn] = {}
        for entrant in [*entrants, *_yardsticks(columns)]:
            for method, by_column in entrant.forecast(windows).items():
                of_series[method] = of_series.get(method, {}) | by_column
                methods[method] = entrant.note(windows.data).later(methods.get(method))
        by_series.append(_series_forecasts(windows, of_series))
    origin = BoardOrigin({task: reference_baseline(task) or NAIVE for task in loaded.tasks}, market.is_demo)
    board = Board(by_series, _with_facts(methods, about or {}), origin)
    absent = sorted({*names} - {*board.table["method"]})
    if absent:
        first_s, last_s = (iso(int(by_series[0].cutoff_s[place])) for place in (0, -1))
        raise _refused(
            "forecasts all columns of a task, or the column that is evaluated, in some window",
            f"0 windows of {listed(absent)}",
            f"The windows of {by_series[0].series} have cutoffs from {first_s} to {last_s}",
        )
    return board


@dataclass(frozen=True)
class _Market:
    """Where candles are read."""

    series: Sequence[str]  # names
    read: Callable[[str, Profile], Candles]  # candles of a series with the covariates of a profile
    trainable: Any  # the same candles as `v8.train` takes them
    is_demo: bool = False  # whether the market was simulated


def _market(
    candles: Any, names: list[str], profile: Profile, covariates: Mapping[str, Any] | None
) -> _Market:
    """Say where the candles of the board are read, and of which series."""
    if isinstance(candles, str | Path):
        options = source_of(candles, names)
        folder = options.get("data_dir")
        source = open_source(options["source"], data_dir=Path(folder) if folder else None)
        chosen = chosen_series(names) or served_series(source)

        def read_source(name: str, wanted: Profile) -> Candles:
            companions = Companions.of(wanted, covariates)
            return companions.candles(source, Series.parse(name), profile.newest_bars)

        is_demo = not source.is_publishable
        return _Market([str(each) for each in chosen], read_source, candles, is_demo)
    if isinstance(candles, Mapping) and all(is_series_name(str(name)) for name in candles):
        frames = {str(name): frame for name, frame in candles.items() if not names or name in names}
    else:
        named = joined_candles(candles, profile, names[0] if names else None, covariates)
        frames = {str(named.series): candles}
    missing = [name for name in names if name not in frames]
    if missing or not frames:
        raise ArgumentError(
            where="v8.evaluate, series=",
            rule=f"names series of the candles, which are {listed([*frames]) or 'of none'}",
            got=listed(missing) or "none",
            fix="Give a mapping of frames by series",
        )

    def read_frame(name: str, wanted: Profile) -> Candles:
        return joined_candles(frames[name], wanted, name, covariates)

    return _Market([*frames], read_frame, frames)


@dataclass(frozen=True, eq=False)
class _Windows:
    """The windows of one series that are to be forecast: those of its test span."""

    series: str
    data: SeriesData
    columns: Sequence[str]  # that are evaluated
    market: _Market
    _by_baseline: dict[str, Mapping[str, Any]] = field(default_factory=dict)

    def baseline(self, name: str) -> Mapping[str, Any]:
        """Return the forecasts of a baseline by task, shape (N, H, C); it is fitted once."""
        if name not in self._by_baseline:
            fitted = BASELINES[name].fitted(self.data.spans["train"], self.data.scaling)
            self._by_baseline[name] = fitted(self.span)
        return self._by_baseline[name]

    @property
    def span(self) -> Span:
        return self.data.spans["test"]

    @property
    def cutoff_s(self) -> NDArray[np.int64]:
        """When the newest known candle of each window opened, seconds since the epoch, shape (N,)."""
        return self.span.table.open_time_s[self.span.anchors].astype(np.int64)

    def of_tasks(self, by_task: Mapping[str, Any]) -> ByColumn:
        """Return the columns that are evaluated, of forecasts by task, shape (N, H, C)."""
        by_column = {}
        for task, values_NHC in by_task.items():
            for place, name in enumerate(TASKS[task].columns):
                if name in self.columns:
                    by_column[name] = np.asarray(values_NHC[..., place], np.float64)
        return by_column


@dataclass
class _Entrant(ABC):
    """Something that forecasts windows: one method, or several."""

    name: str

    @property
    def names(self) -> Sequence[str]:
        """Names of its methods."""
        return [self.name]

    @abstractmethod
    def forecast(self, windows: _Windows) -> Mapping[str, ByColumn]:
        """Return its forecasts by method; without those of a series that it does not know."""

    @abstractmethod
    def note(self, data: SeriesData) -> Method:
        """Say what is known of the method that forecast this series."""


def _named(forecasts: Any) -> dict[str, Any]:
    """Return what forecasts by name; a single one has an empty name."""
    if not isinstance(forecasts, Mapping):
        return {"": forecasts}
    if not forecasts:
        raise _refused("holds at least one method", "an empty mapping")
    if not all(isinstance(name, str) and name for name in forecasts):
        raise _refused("is a mapping from names to methods", repr(forecasts)[:60])
    return dict(forecasts)


def _entrant(name: str, method: Any, market: _Market, runs: str | Path) -> _Entrant:
    """Return what forecasts, of whatever kind it is."""
    if isinstance(method, pd.DataFrame):
        return _frame_entrant(name, method, market)
    if isinstance(method, Forecaster):
        rule = "is a run, of which a loaded forecaster is one model"
        folder = f": {method.folder.parent}" if method.folder else ""
        raise _refused(rule, repr(method)[:60], f"Give the folder of its run{folder}")
    if _is_model(method):
        return _OfModel(name or "model", dict.fromkeys(market.series, method))
    if isinstance(method, Mapping) and method and all(map(_is_model, method.values())):
        return _OfModel(name or "model", method)
    if isinstance(method, str) and method in BASELINES and BASELINES[method].is_installed():
        return _OfBaseline(name or method, method, tuple(TASKS))
    place = _place_of(method, market, runs)
    if place is None:
        rule = "is a Keras model, a frame of forecasts, a run, a baseline or a profile, or a mapping to these"
        is_path = isinstance(method, Path) or (isinstance(method, str) and len(Path(method).parts) > 1)
        got = f"{repr(method)[:60]}{', where no folder is' if is_path else ''}"
        near = nearest(str(method), [*BASELINES, *profile_names()])
        raise _refused(rule, got, f"Did you mean {near}" if near else _HELP)
    models = open_place(place)
    if not {*models.series} & {*market.series}:
        _require_named(market, f"the models of {place}")
        rule = f"has a model of a series of the candles, which are of {listed(market.series)}"
        raise _refused(rule, f"{place} with {listed(models.series)}", "Give candles of these series")
    return _OfPlace(name or Path(place).name, models)


def _require_named(market: _Market, what: str) -> None:
    """Refuse a frame of candles that does not say of which series it is, where a method is by series."""
    if any(series.startswith(f"{UNNAMED}-") for series in market.series):
        fix = 'Write of which series the candles are, such as series="BTCUSDT-15m"'
        raise _refused(f"belongs to the candles: {what} are by series", "candles without a name", fix)


def _place_of(method: Any, market: _Market, runs: str | Path) -> str | Path | None:
    """Return where the models of a run, of a repository or of a profile are; None for anything else."""
    if isinstance(method, Run):
        return method.path
    if isinstance(method, str | Path):
        checked_argument("v8.evaluate", "forecasts", method, str | Path)
    if isinstance(method, Profile) or (isinstance(method, str | Path) and _is_profile(str(method))):
        return train(market.trainable, method, series=[*market.series], runs=runs, progress=False).path
    if isinstance(method, str | Path) and (Path(method).is_dir() or is_repository(str(method))):
        return method
    return None


def _is_model(method: Any) -> bool:
    return callable(getattr(method, "predict", None))


def _is_profile(name: str) -> bool:
    return name in profile_names() or (Path(name).suffix in (".yaml", ".yml") and Path(name).is_file())


def _require_own_names(entrant: _Entrant) -> None:
    """Refuse a method with the name of a baseline that every board has, unless it is that baseline."""
    baselines = _on_every_board()
    taken = baselines.intersection(entrant.names)
    if taken and not (isinstance(entrant, _OfBaseline) and entrant.name == entrant.baseline):
        rule = f"leaves the names {listed(sorted(baselines))} to the baselines that every board has"
        raise _refused(rule, f"another method called {listed(sorted(taken))}", "Rename it")


def _on_every_board() -> set[str]:
    """Return the names of naive and of the best baseline of each task."""
    return {NAIVE, *(reference_baseline(task) or NAIVE for task in TASKS)}


def _only_column(entrants: Sequence[_Entrant]) -> str | None:
    """Return the column that frames of forecasts have, where each has one only; None for all columns."""
    only_columns = [entrant.only_column for entrant in entrants if isinstance(entrant, _OfFrame)]
    names = sorted({name for name in only_columns if name is not None})
    if len(names) > 1:
        raise _refused("forecasts the same column in all frames", listed(names), "Leave out the others")
    return names[0] if names else None


def _columns(profile: Profile, column: str | None) -> list[str]:
    """Return the columns that are evaluated: one, or those of every task of the profile."""
    available = [name for task in profile.tasks for name in TASKS[task].columns]
    if column is None or column in available:
        return [column] if column else available
    raise ArgumentError(
        where="v8.evaluate, column=",
        rule=f"is a column that {profile.name} forecasts: {', '.join(available)}",
        got=repr(column)[:60],
        fix="Choose one of these, or a profile with its task",
    )


def _yardsticks(columns: Sequence[str]) -> list["_OfBaseline"]:
    """Return what every board has: naive, and the best baseline of each task."""
    by_name: dict[str, list[str]] = {NAIVE: []}
    for name, task in TASKS.items():
        if any(column in columns for column in task.columns):
            for baseline in dict.fromkeys((NAIVE, reference_baseline(name) or NAIVE)):
                by_name.setdefault(baseline, []).append(name)
    return [_OfBaseline(name, name, tuple(tasks)) for name, tasks in by_name.items()]


def _series_forecasts(windows: _Windows, methods: Mapping[str, ByColumn]) -> SeriesForecasts:
    """Put the forecasts of all methods together with the actual values."""
    span = windows.span
    scale: dict[str, FloatArray] = {}
    for task in span.profile.tasks:
        unit = span.last_close if TASKS[task].is_price else np.ones(len(span))
        scale |= {name: unit for name in TASKS[task].columns if name in windows.columns}
    actual = windows.of_tasks(span.actual)
    return SeriesForecasts(windows.data.series, windows.cutoff_s, scale, actual, methods)


@dataclass
class _OfModel(_Entrant):
    """Keras models of the user, whose scaled outputs become prices."""

    models: Mapping[str, Any]  # by series

    def forecast(self, windows: _Windows) -> Mapping[str, ByColumn]:
        model = self.models.get(windows.series)
        if model is None:
            return {}
        span = windows.span
        outputs = _predicted(model, windows)
        tasks = list(span.profile.tasks)
        if not isinstance(outputs, Mapping):
            outputs = dict(zip(tasks, [outputs], strict=False)) if len(tasks) == 1 else {}
        by_task = {}
        for task in tasks:
            if not any(name in windows.columns for name in TASKS[task].columns):
                continue
            shape = span.actual[task].shape
            rule = f"has an output {task} of shape {shape} for the windows of v8.windows"
            if task not in outputs:
                fix = "Name an output after each task of the profile, or evaluate one column= only"
                raise _refused(rule, f"the outputs {listed([*outputs]) or 'without names'}", fix)
            scaled = np.asarray(outputs[task])
            if scaled.shape != shape:
                raise _refused(rule, f"the shape {scaled.shape}")
            by_task[task] = windows.data.scaling.unscale_targets(span, task, scaled)
            if not np.isfinite(by_task[task]).all():
                fix = "If it is the model.keras of a run, which forecasts prices, give the run's folder"
                raise _refused(f"has scaled targets as output {task}, as v8.windows", "other numbers", fix)
        return {self.name: windows.of_tasks(by_task)}

    def note(self, data: SeriesData) -> Method:
        return Method("Keras model")


def _predicted(model: Any, windows: _Windows) -> Any:
    """Let a Keras model of the user forecast the windows; refuse one whose input has another shape."""
    profile = windows.span.profile
    shape = (len(windows.span), profile.lookback_bars, len(profile.features))
    rule = f"takes the windows of v8.windows, {shape}"
    own_shape = getattr(model, "input_shape", None)
    if isinstance(own_shape, tuple) and None not in own_shape[1:] and own_shape[1:] != shape[1:]:
        raise _refused(rule, f"a model that takes {own_shape}")
    try:
        with quiet_start():
            return model.predict(span_dataset(windows.data, "test"), verbose=0)
    except ValueError as error:  # of Keras, about another input
        raise _refused(rule, " ".join(str(error).split())[:200]) from error


@dataclass
class _OfBaseline(_Entrant):
    """A baseline, fitted to the train span."""

    baseline: str  # a key of `BASELINES`
    tasks: Sequence[str]  # of which it is on the board

    def forecast(self, windows: _Windows) -> Mapping[str, ByColumn]:
        by_task = windows.baseline(self.baseline)
        return {self.name: windows.of_tasks({task: by_task[task] for task in self.tasks if task in by_task})}

    def note(self, data: SeriesData) -> Method:
        if BASELINES[self.baseline].brief is None:  # a plug-in may hold a model that others have trained
            return Method("baseline of a plug-in")
        train_span = data.spans["train"]
        last_row = int(train_span.anchors[-1]) + train_span.horizon_bars
        return Method("baseline", int(data.table.open_time_s[last_row]) + data.series.bar_s)


@dataclass
class _OfPlace(_Entrant):
    """The models of a run or of a repository; each forecasts the windows that are newer than its training."""

    place: ModelPlace
    newest: Method | None = None  # what is known of the model that forecast last

    def forecast(self, windows: _Windows) -> Mapping[str, ByColumn]:
        if windows.series not in self.place.series:
            return {}
        with quiet_start():
            forecaster = self.place.open(windows.series)
        profile = forecaster.about.trained_profile
        self.newest = Method(f"run of {profile.name}", forecaster.trained_until_s)
        every = whole_span(windows.market.read(windows.series, profile), profile)
        opens_s = every.table.open_time_s[every.anchors].astype(np.int64)
        is_unseen = opens_s + windows.data.series.bar_s >= forecaster.trained_until_s
        is_wanted = is_unseen & np.isin(opens_s, windows.cutoff_s)
        if not is_wanted.any():
            return {self.name: {}}
        span = Span(every.table, profile, every.anchors[is_wanted])
        rows = np.searchsorted(windows.cutoff_s, opens_s[is_wanted])
        num_steps = min(profile.horizon_bars, windows.span.horizon_bars)
        by_column: ByColumn = {}
        for name, values_NH in windows.of_tasks(forecaster.forecast(span.raw_windows())).items():
            by_column[name] = np.full((len(windows.span), windows.span.horizon_bars), np.nan)
            by_column[name][rows, :num_steps] = values_NH[:, :num_steps]
        return {self.name: by_column}

    def note(self, data: SeriesData) -> Method:
        return self.newest or Method("run")


@dataclass
class _OfFrame(_Entrant):
    """Forecasts that another program made, in the layout of Nixtla."""

    rows: pd.DataFrame
    methods: Mapping[str, str]  # names of methods by column of the frame
    series: str | None  # column with the name of the series; None where the rows are of the only series

    @property
    def names(self) -> Sequence[str]:
        return [*self.methods.values()]

    @property
    def only_column(self) -> str | None:
        """The one column that all rows are of; None for several."""
        names = [str(name) for name in self.rows["column"].unique()] if "column" in self.rows else [CLOSE]
        return names[0] if len(names) == 1 else None

    def forecast(self, windows: _Windows) -> Mapping[str, ByColumn]:
        rows = self.rows
        if self.series is not None:
            rows = rows[rows[self.series].astype(str) == windows.series]
        return in_windows(rows, self.methods, _series_forecasts(windows, {}))

    def note(self, data: SeriesData) -> Method:
        return Method("forecasts of another program")


def _frame_entrant(name: str, frame: pd.DataFrame, market: _Market) -> _OfFrame:
    """Check a frame of forecasts; its only method has the name of the frame, several have their own."""
    if "ds" not in frame:
        frame = frame.rename(columns={"open_time": "ds"})
    columns = [str(column) for column in frame]
    # Naive and the best baselines are computed again, so that they are the same on every board.
    computed = _on_every_board()
    methods = [
        column
        for column in columns
        if column not in _NO_METHODS and column not in computed and not _BOUND.search(column)
    ]
    if not {"ds", "cutoff"} <= {*columns} or not methods:
        rule = "has the columns cutoff and ds, and one for each method"
        raise _refused(rule, f"the columns {listed(columns)}")
    series = next((column for column in ("unique_id", "series") if column in columns), None)
    if series is not None:
        _require_named(market, f"rows with {series}")
    if series is None and len(market.series) > 1:
        rule = "names the series of each row in unique_id, where candles are of several"
        raise _refused(rule, f"the columns {listed(columns)}")
    own_names = {method: name if name and len(methods) == 1 else method for method in methods}
    return _OfFrame(name, frame, own_names, series)


def _with_facts(methods: Mapping[str, Method], facts_by_method: Mapping[str, Any]) -> dict[str, Method]:
    """Add what the user says of methods."""
    described = dict(methods)
    for name, facts in facts_by_method.items():
        if name not in described:
            raise ArgumentError(
                where="v8.evaluate, about=",
                rule=f"is by the name of a method: {listed([*described])}",
                got=repr(name)[:60],
                fix="help(v8.evaluate) says what it may hold",
            )
        described[name] = described[name].with_facts(name, facts)
    return described


def _refused(rule: str, got: str, fix: str = _HELP) -> ArgumentError:
    return ArgumentError(where=_WHERE, rule=rule, got=got, fix=fix)
