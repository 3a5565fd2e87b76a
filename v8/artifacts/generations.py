"""Generations: models of a run that were trained later, and the pointer to those that serve.

    runs/aligned/            what was trained first serves until something better does
      serving.json           per series the generation that serves, and every decision that was made about it
      generations/
        2026-11-21/        a run folder as any other, named by the day of its newest candle; next 2026-11-21-2

Whoever looks for the model of a series in a run asks `served_folder`. A generation serves only what a
decision says, so one that is half finished never serves. The pointer is written aside and renamed, once a
decision: whoever is killed leaves the old one or the new one. No generation is ever deleted here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter

from v8.artifacts.metadata import METADATA_FILE
from v8.artifacts.run_folder import GENERATIONS_FOLDER, RUN_FILE, SeriesName, read_run, require_own_files
from v8.errors import ArtifactError
from v8.market.series import by_series
from v8.records import AS_WRITTEN, Count, Moment, Number, Plain, Word, check_format, checked, read_json_object
from v8.storage import write_json

SERVING_FORMAT: Final = 1
"""Version of the keys of `serving.json`."""

SERVING_FILE: Final = "serving.json"

FIRST: Final = "0"
"""The generation that lies in the run folder itself."""

MOST_DECISIONS: Final = 100
"""Decisions that are kept of a series: weekly ones of two years; older ones go, to keep the file small."""

_NAME: Final = re.compile(r"(?P<day>[0-9]{4}-[0-9]{2}-[0-9]{2})(-(?P<number>[1-9][0-9]{0,3}))?")

_FIX: Final = "Restore the file, or remove it: then the models of the run's own folder serve"


def is_generation_name(name: str) -> bool:
    """Tell whether a text names a generation, and is safe as the name of a folder.

    >>> is_generation_name("2026-11-21-2"), is_generation_name("../2026-11-21"), is_generation_name("0")
    (True, False, True)
    """
    return name == FIRST or _NAME.fullmatch(name) is not None


def _generation_name(name: str) -> str:
    if not is_generation_name(name):
        raise ValueError("names a generation such as 2026-11-21")
    return name


GenerationName = Annotated[str, Field(strict=True, max_length=20), AfterValidator(_generation_name)]
"""`0`, or a day and a number."""

Share = Annotated[float, Field(strict=True, ge=0, le=1)]
"""A chance, from 0 to 1."""


@dataclass(frozen=True)
class Sureness:
    """How good the quantiles of a model were on the judged candles."""

    crps: Number  # twice the mean pinball loss, as a multiple of the naive forecast's mean absolute error
    coverage: Mapping[Plain, Share]
    """Shares of the truths that lay in its central intervals, by name, such as "90 %"."""


@dataclass(frozen=True)
class Contender:
    """A model that stood for service."""

    generation: GenerationName  # where it lies
    trained_until: Moment | None
    """Open time of the newest candle it was made from, ISO 8601; None where that is unknown."""
    multiples: Mapping[Word, Number] = field(default_factory=dict)
    """Per task its mean absolute error there as a multiple of naive's; empty where it was not judged."""
    quantiles: Mapping[Word, Sureness] = field(default_factory=dict)
    """Per task how good its quantiles were; empty where it has none. They decide nothing."""


@dataclass(frozen=True)
class Opponent:
    """The best baseline of a task on the judged candles, and its error as a multiple of naive's."""

    name: Plain
    multiple: Number


@dataclass(frozen=True)
class Decision:
    """Which of two models serves a series from now on, and why."""

    series: SeriesName  # which one
    decided_at: Moment  # when, ISO 8601
    stale: Plain  # why the champion was challenged
    champion: Contender  # the model that served until then
    challenger: Contender  # the newer one
    num_windows: Count  # windows that both were judged on, and neither was made from
    judged_from: Moment | None  # when the first forecast of them was issued, ISO 8601; None without any
    judged_until: Moment | None  # when the last forecast bar of them closed, ISO 8601; None without any
    baselines: Mapping[Word, Opponent]  # per task the best baseline of the same windows
    p_values: Mapping[Word, Share | None]
    """Per task the chance of so large a difference between the two if both were as good."""
    verdict: Literal["replaced", "kept"]  # `replaced`: the challenger serves. `kept`: the champion does
    why: Plain  # the reason, a clause

    @property
    def is_replaced(self) -> bool:
        """Whether the challenger serves."""
        return self.verdict == "replaced"


@dataclass(frozen=True)
class _Record:
    """The content of `serving.json`."""

    serving: Annotated[Mapping[str, GenerationName], BeforeValidator(by_series)]
    decisions: tuple[Decision, ...]


_RECORD: Final = TypeAdapter(_Record)


@dataclass(frozen=True)
class Serving:
    """Which generation serves each series of a run."""

    run: Path  # the run folder
    generations: Mapping[str, str]  # per series that a later generation serves: which
    decisions: tuple[Decision, ...]
    """What was decided, oldest first; the newest `MOST_DECISIONS` of each series."""

    def generation_of(self, series: str) -> str:
        """Return the generation that serves a series."""
        return self.generations.get(series, FIRST)

    def folder(self, series: str) -> Path:
        """Return the folder of the model that serves a series; that of the run itself need not exist.

        Raises `ArtifactError` if the generation that serves is not there, or holds links.
        """
        name = self.generation_of(series)
        folder = artifact_folder(self.run, name, series)
        if name != FIRST and not (folder / METADATA_FILE).is_file():
            raise ArtifactError(
                where=str(folder),
                rule=f"{self.run / SERVING_FILE} says that this generation serves {series}",
                got="no finished model there",
                fix=_FIX.replace("the file", "the folder").replace("it:", f"{SERVING_FILE}:"),
            )
        return folder

    def decisions_about(self, series: str) -> tuple[Decision, ...]:
        """Return the decisions about a series, oldest first."""
        return tuple(one for one in self.decisions if one.series == series)

    def renewal_of(self, series: str) -> Decision | None:
        """Return the decision that made a later generation serve a series; None where the first does."""
        name = self.generations.get(series)
        made = (one for one in reversed(self.decisions_about(series)) if one.is_replaced)
        return next((one for one in made if one.challenger.generation == name), None)

    def has_decided(self, series: str, generation: str) -> bool:
        """Tell whether it was decided if a generation serves a series."""
        return any(one.challenger.generation == generation for one in self.decisions_about(series))

    def with_decision(self, decision: Decision) -> Serving:
        """Return what serves after a decision."""
        series, generations = decision.series, dict(self.generations)
        if decision.is_replaced:
            generations[series] = decision.challenger.generation
        gone = self.decisions_about(series)[: 1 - MOST_DECISIONS]
        return replace(
            self,
            generations=generations,
            decisions=(*(one for one in self.decisions if one not in gone), decision),
        )

    def save(self) -> None:
        """Write `serving.json`, whole or not at all.

        Raises `StorageError` if it cannot be written.
        """
        record = _Record(self.generations, self.decisions)
        _RECORD.validate_python(asdict(record))  # what is written must be what reading accepts
        write_json(self.run / SERVING_FILE, {"format": SERVING_FORMAT, **asdict(record)})


def read_serving(run: Path) -> Serving:
    """Read and check which generations serve the series of a run; without a file its own models do.

    Raises `ArtifactError` if the file is damaged, of an unknown format, or names what no run holds.
    """
    file = run / SERVING_FILE
    if not file.exists() and not file.is_symlink():
        return Serving(run, {}, ())
    require_own_files(run)
    content = read_json_object(file, fix=_FIX)
    check_format(content, (SERVING_FORMAT,), what="serving", where=str(file), fix="Use the v8 that wrote it")
    record = checked(_RECORD, content, where=str(file), fix=_FIX, rule=AS_WRITTEN)
    return Serving(run, record.serving, record.decisions)


def served_folder(run: Path, series: str) -> Path:
    """Return the folder of the model that serves a series of a run, see `Serving.folder`.

    Raises `ArtifactError` if `serving.json` is damaged, or the generation that it names is not there.
    """
    return read_serving(run).folder(series)


def artifact_folder(run: Path, generation: str, series: str) -> Path:
    """Return where the model of a series lies in a generation; it need not exist.

    Raises `ArtifactError` if one of the folders on the way holds links.
    """
    if generation == FIRST:
        return run / series
    folder = generation_folder(run, generation)
    for place in (folder.parent, folder, folder / series):
        require_own_files(place)
    return folder / series


def generation_folder(run: Path, generation: str) -> Path:
    """Return the run folder of a generation; it need not exist."""
    return run if generation == FIRST else run / GENERATIONS_FOLDER / generation


def list_generations(run: Path) -> list[str]:
    """List the generations that are begun beside a run's own, oldest first.

    Raises `ArtifactError` if their folder holds links.
    """
    require_own_files(run)
    require_own_files(run / GENERATIONS_FOLDER)
    found = (path.parent.name for path in (run / GENERATIONS_FOLDER).glob(f"*/{RUN_FILE}"))
    return sorted(filter(_NAME.fullmatch, found), key=_age)


def free_generation(run: Path, day: str) -> str:
    """Name a generation that has yet to begin; one that was killed before it knew its series has not.

    Args:
        run: The run folder.
        day: Of its newest candle, such as "2026-11-21".
    """
    return next(name for name in _names_of(day) if not _has_begun(generation_folder(run, name)))


def _names_of(day: str) -> Iterator[str]:
    yield day
    yield from (f"{day}-{number}" for number in count(2))


def _has_begun(folder: Path) -> bool:
    return (folder / RUN_FILE).exists() and bool(read_run(folder).series)


def _age(name: str) -> tuple[Any, ...]:
    found = _NAME.fullmatch(name)
    return (found["day"], int(found["number"] or 1)) if found else ()
