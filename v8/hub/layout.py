"""What lies in a published repository: a manifest, and a run laid out as it says, checked and complete.

    README.md                                          the model card
    leaderboard.csv
    manifest.json                                      sha256 and size of every other file
    models/BTCUSDT-15m/{model.keras, metadata.json, history.csv, README.md}

A manifest is read from strangers: only names of this layout are accepted, so no file of it can land
outside the folder it is downloaded to. The client that downloads checks no content; `is_whole_in` does.

Everything that is said about a model is read from its `metadata.json`; nothing here takes the time of
day. Staging the same run twice gives the same bytes, so publishing it twice changes nothing.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, TypeAdapter

from v8 import records
from v8.artifacts.metadata import (
    HISTORY_FILE,
    METADATA_FILE,
    MODEL_FILE,
    CandlesAbout,
    Metadata,
    read_metadata,
    redo_offered,
    verify_model_file,
)
from v8.artifacts.model_file import MAX_UNPACKED_BYTES, check_keras_file, require_made_for
from v8.artifacts.nested_runs import Decision, read_serving
from v8.artifacts.run_folder import RunRecord, read_run
from v8.artifacts.series_artifact import README_FILE, artifact_readme
from v8.errors import ArtifactError, PublishError, listed
from v8.invocation import command
from v8.losses.leaderboard import (
    LEADERBOARD_FILE,
    rank_results,
    read_history,
    write_leaderboard_csv,
)
from v8.market.series import by_series, is_series_name
from v8.records import Count, Sha256, Text
from v8.redaction import shown
from v8.storage import digest_file, write_bytes, write_text
from v8.views.card import distinct_versions, model_card

MANIFEST_FORMAT: Final = 1
"""Version of the keys of `manifest.json`."""

MANIFEST_FILE: Final = "manifest.json"
CARD_FILE: Final = "README.md"
MODELS_FOLDER: Final = "models"

ROOT_FILES: Final = (CARD_FILE, LEADERBOARD_FILE)
SERIES_FILES: Final = (README_FILE, HISTORY_FILE, METADATA_FILE, MODEL_FILE)

MAX_LINE: Final = 200
"""Letters of a text in a manifest."""

_FIX: Final = f"Publish the run again with `{command('publish')}`, or pull another revision"


def is_published_path(path: str) -> bool:
    """Tell whether a published run can hold a file of this name; nothing outside its folder can.

    >>> is_published_path("models/BTCUSDT-15m/model.keras"), is_published_path("models/../model.keras")
    (True, False)
    """
    if path in ROOT_FILES:
        return True
    folder, _, rest = path.partition("/")
    series, _, name = rest.partition("/")
    return folder == MODELS_FOLDER and is_series_name(series) and name in SERIES_FILES


def series_folder(series: str) -> str:
    """Return the folder of a series inside a repository.

    >>> series_folder("BTCUSDT-15m")
    'models/BTCUSDT-15m'
    """
    return f"{MODELS_FOLDER}/{series}"


def series_of(path: str) -> str | None:
    """Return the series that a file of a published run belongs to; None for any other file.

    >>> series_of("models/BTCUSDT-15m/model.keras"), series_of("README.md"), series_of("models/../a/b")
    ('BTCUSDT-15m', None, None)
    """
    return path.split("/")[1] if is_published_path(path) and path not in ROOT_FILES else None


def _published_path(path: str) -> str:
    if not is_published_path(path):
        raise ValueError(
            f"names {', '.join(ROOT_FILES)} or {MODELS_FOLDER}/<SERIES>/ with {', '.join(SERIES_FILES)}"
        )
    return path


def _one_line(text: str) -> str:
    if shown(text, MAX_LINE) != text:
        raise ValueError(f"is one line of at most {MAX_LINE} letters that can be printed")
    return text


Line = Annotated[Text, AfterValidator(_one_line)]
"""A text that can be shown as it is."""


@dataclass(frozen=True)
class ListedFile:
    """One file of a published run, by its relative name with forward slashes."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    path: Annotated[str, AfterValidator(_published_path)]
    sha256: Sha256
    size_bytes: Count

    @classmethod
    def read(cls, folder: Path, path: str) -> ListedFile:
        """Describe a file as it lies in a folder now."""
        return cls(path, digest_file(folder / path), (folder / path).stat().st_size)

    def is_whole_in(self, folder: Path) -> bool:
        """Tell whether the file lies in a folder with the content that was published."""
        path = folder / self.path
        return path.is_file() and path.stat().st_size == self.size_bytes and digest_file(path) == self.sha256


@dataclass(frozen=True)
class DataSpan:
    """Which candles a model has seen, by open times in ISO 8601, UTC; the last one is the data cut-off."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    source: Line
    first_open: Line
    last_open: Line
    num_bars: Count

    @classmethod
    def of(cls, candles: CandlesAbout) -> DataSpan:
        """Pick what is published of the candles that `metadata.json` describes."""
        return cls(candles.source, candles.first_open, candles.last_open, candles.num_bars)


@dataclass(frozen=True)
class Manifest:
    """The content of `manifest.json`."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    profile_name: Line  # name of the profile, for example "aligned"
    profile_digest: Sha256  # its sha256; all models are of it
    created_at: Line  # when the newest model of it was saved, ISO 8601 in UTC
    versions: Mapping[Line, Line]
    """Of what can change a result; several of one thing when models of several runs lie there."""
    data: Annotated[Mapping[str, DataSpan], Field(min_length=1), BeforeValidator(by_series)]
    """Per series, the candles its model has seen; its keys are the series published."""
    files: tuple[ListedFile, ...]  # every file but the manifest, ascending by path

    @property
    def series(self) -> tuple[str, ...]:
        """Names of the series whose models are published."""
        return tuple(self.data)

    def files_of(self, series: str) -> tuple[ListedFile, ...]:
        """Return the files of one series' artefact.

        Raises `ArtifactError` if the series is not published.
        """
        if series not in self.data:
            raise ArtifactError(
                where=MANIFEST_FILE,
                rule="a series is one of those that were published",
                got=series,
                fix=f"Choose one of {listed(self.series)}",
            )
        folder = series_folder(series)
        return tuple(file for file in self.files if file.path.startswith(f"{folder}/"))

    def to_text(self) -> str:
        """Return the content of the file; the same manifest gives the same bytes."""
        content = {"format": MANIFEST_FORMAT, **_MANIFEST.dump_python(self, mode="json")}
        return json.dumps(content, indent=2, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, content: Any, *, where: str = MANIFEST_FILE) -> Manifest:
        """Check what the file `where` holds.

        Raises `ArtifactError` if it is of an unknown format, incomplete, or names a file that no
        published run holds.
        """
        records.check_format(
            content, (MANIFEST_FORMAT,), what="manifest", where=where, fix="Use the v8 that published it"
        )
        keys = {name: value for name, value in content.items() if name != "format"}
        manifest = records.checked(_MANIFEST, keys, where=where, fix=_FIX)
        names, expected = [file.path for file in manifest.files], {*ROOT_FILES}
        for series in manifest.series:
            expected.update(f"{series_folder(series)}/{name}" for name in SERIES_FILES)
        if strange := sorted(expected.symmetric_difference(names)):
            rule = f"lists {', '.join(ROOT_FILES)} and {len(SERIES_FILES)} files of every series in data"
            raise ArtifactError(where=where, rule=rule, got=f"a difference in {listed(strange)}", fix=_FIX)
        if names != sorted(set(names)):
            rule = "lists each file once, ascending by path"
            raise ArtifactError(where=where, rule=rule, got="another order or a repetition", fix=_FIX)
        return manifest


_MANIFEST: Final = TypeAdapter(Manifest)


def read_manifest(file: Path) -> Manifest:
    """Read a manifest from disk.

    Raises `ArtifactError` if it is missing, damaged, of an unknown format, or names what it must not.
    """
    return Manifest.from_json(records.read_json_object(file, fix=_FIX), where=str(file))


def list_files(folder: Path) -> tuple[ListedFile, ...]:
    """List every file below `folder` but the manifest, ascending by path."""
    paths = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return tuple(ListedFile.read(folder, path) for path in paths if path != MANIFEST_FILE)


@dataclass(frozen=True)
class Choice:
    """Which models of a run to publish."""

    is_partial: bool = False  # whether a run with failed or unfinished series may be published
    is_only_skilled: bool = False
    """Whether models that lose to the naive forecast in any task, by more than chance, are held back; those
    that only a better baseline beats are published, and labelled."""
    series: tuple[str, ...] = ()  # names of those that are meant; all of the run when empty


@dataclass(frozen=True)
class Kept:
    """Models of a repository that a run does not have and that stay there, by series."""

    manifest: Manifest
    metadata: Mapping[str, Metadata]

    @property
    def files(self) -> tuple[ListedFile, ...]:
        """The files that stay, as they were published."""
        return tuple(file for series in self.metadata for file in self.manifest.files_of(series))


@dataclass(frozen=True)
class StagedRun:
    """The models of a run that are published, laid out in a folder as they will lie in the repository."""

    folder: Path  # where
    repo: str  # where to, `user/name`
    record: RunRecord  # what the run is
    metadata: Mapping[str, Metadata]  # per series that is published
    held_back: Mapping[str, str]  # per series that is not published: why, as a clause
    changes: Mapping[str, Decision] = field(default_factory=dict)
    """Per series that is not served by the run's first model: the decision that made it so."""

    def beside(self, kept: Kept | None) -> Staged:
        """Write leaderboard, card and manifest, of the run's models and those that stay.

        Raises:
            PublishError: If models that stay are of another profile, so that no one card can tell of all.
            ArtifactError: If their metadata cannot be read.
        """
        staying = kept.metadata if kept else {}
        self._require_one_profile(staying)
        together = [about for _, about in sorted({**staying, **self.metadata}.items())]
        held_back = {name: reason for name, reason in self.held_back.items() if name not in staying}
        is_of_many_runs = bool(kept or self.changes)
        card = model_card(
            self.repo,
            self.record,
            together,
            held_back,
            is_of_many_runs=is_of_many_runs,
            changes=self.changes.values(),
        )
        write_leaderboard_csv(
            self.folder / LEADERBOARD_FILE, rank_results(about.result for about in together)
        )
        write_text(self.folder / CARD_FILE, card)
        files = (*list_files(self.folder), *(kept.files if kept else ()))
        made_with = (about.versions for about in together)
        versions = distinct_versions(made_with) if is_of_many_runs else self.record.versions
        manifest = Manifest(
            profile_name=self.record.profile_name,
            profile_digest=self.record.profile_digest,
            created_at=max(about.created_at for about in together),
            versions=versions,
            data={about.series: DataSpan.of(about.candles) for about in together},
            files=tuple(sorted(files, key=lambda file: file.path)),
        )
        write_text(self.folder / MANIFEST_FILE, manifest.to_text())
        # What is sent must be what pulling accepts.
        return Staged(self, read_manifest(self.folder / MANIFEST_FILE), kept)

    def _require_one_profile(self, kept: Mapping[str, Metadata]) -> None:
        digest = self.record.profile_digest
        if others := [name for name, about in kept.items() if about.profile_digest != digest]:
            rule = (
                f"models that stay beside those of a run are of its profile {self.record.profile_name}, too"
            )
            raise PublishError(
                where=self.repo,
                rule=f"{rule} (digest {digest[:12]})",
                got=f"{len(others)} of another: {listed(others)}",
                fix="Choose another param:repo, or remove all models that the run does not have with "
                "param:prune",
            )


@dataclass(frozen=True)
class Staged:
    """A staged run and the manifest that describes it together with the models that stay, if any."""

    run: StagedRun
    manifest: Manifest
    kept: Kept | None

    @property
    def folder(self) -> Path:
        """Where the files lie."""
        return self.run.folder

    @property
    def held_back(self) -> Mapping[str, str]:
        """Per series of the run that is not published: why, as a clause."""
        return self.run.held_back

    @property
    def files(self) -> tuple[ListedFile, ...]:
        """Every file of the folder, the manifest included, ascending by path."""
        manifest = ListedFile.read(self.folder, MANIFEST_FILE)
        kept = {file.path for file in self.kept.files} if self.kept else ()
        files = [file for file in self.manifest.files if file.path not in kept]
        return tuple(sorted((*files, manifest), key=lambda file: file.path))

    def beside(self, kept: Kept | None) -> Staged:
        """Describe the run anew when other models stay than before, as `StagedRun.beside` does."""
        return self if kept == self.kept else self.run.beside(kept)


def stage_run(run: Path, folder: Path, repo: str, choice: Choice) -> Staged:
    """Lay out a run in an empty folder for publishing; the examples of its card name the repository.

    Raises:
        PublishError: If the run was made on the demo market, has unfinished series, or no model is left.
        ArtifactError: If the run is damaged, or a model file is not the one that was judged.
    """
    record = read_run(run)
    check_source(record.source, is_publishable=record.is_publishable)
    meant = set(choice.series) or record.series.keys()
    held_back = {name: why for name, why in _unfinished(run, record, choice).items() if name in meant}
    metadata, serving = {}, read_serving(run)
    for name in sorted((record.series.keys() & meant) - held_back.keys()):
        try:
            served = serving.folder(name)
            with redo_offered(served):
                about = read_metadata(served, series=name)
                result = about.result
                check_source(result.source, is_publishable=not result.is_demo)
                if choice.is_only_skilled and (losing := result.judgement.loses):
                    held_back[name] = f"it loses to the naive forecast: {', '.join(losing)}"
                    continue
                _stage_artifact(served, folder / series_folder(name), about)
        except ArtifactError:
            if not choice.is_partial:
                raise
            held_back[name] = "its files are damaged"
            shutil.rmtree(folder / series_folder(name), ignore_errors=True)
        else:
            metadata[name] = about
    if not metadata:
        reasons = [f"{name}, because {reason}" for name, reason in held_back.items()]
        raise PublishError(
            where=str(run),
            rule="publishing needs at least one model",
            got=f"none: {listed(reasons)}" if reasons else "a run without series",
            fix="Train further, or publish without param:only_skilled",
        )
    changes = {name: one for name in metadata if (one := serving.renewal_of(name))}
    return StagedRun(folder, repo, record, metadata, held_back, changes).beside(None)


def check_source(source: str, *, is_publishable: bool) -> None:
    """Refuse a simulated market with a `PublishError`."""
    if not is_publishable:
        raise PublishError(
            where=f"param:source {source}",
            rule="only models of real markets are published",
            got="a simulated market, about which a forecast says nothing",
            fix="Train on param:source vision or files",
        )


def _unfinished(run: Path, record: RunRecord, choice: Choice) -> dict[str, str]:
    """Return per series that is not done: why; refuse any where all were to be published."""
    found = {
        name: "its training failed" if state.status == "failed" else "its training is not finished"
        for name, state in record.series.items()
        if state.status != "done"
    }
    if found and not choice.is_partial:
        raise PublishError(
            where=str(run),
            rule="a run is published when all its series are done",
            got=f"{len(found)} of {len(record.series)} that are not: {listed(list(found))}",
            fix="Continue the run, or publish what there is with param:partial",
        )
    return found


def _stage_artifact(source: Path, target: Path, about: Metadata) -> None:
    """Copy an artefact, so that nobody changes it while it is sent, and check the copy."""
    target.mkdir(parents=True)
    fix = "Restore the file or train the series again"
    for name in (MODEL_FILE, METADATA_FILE, HISTORY_FILE):
        most = MAX_UNPACKED_BYTES if name == MODEL_FILE else records.MAX_FILE_BYTES
        write_bytes(target / name, records.read_plain(source / name, fix=fix, most_bytes=most))
    read_history(target / HISTORY_FILE)
    check_keras_file(file := verify_model_file(target, about))
    require_made_for(file, about.series)
    write_text(target / README_FILE, artifact_readme(about))
