"""Staging: the files of a run as they will lie in a repository, checked, described and complete.

Everything that is said about a model is read from its `metadata.json`; nothing here takes the time of
day. Staging the same run twice gives the same bytes, so publishing it twice changes nothing.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from v8.artifacts.generations import Decision, read_serving
from v8.artifacts.metadata import (
    HISTORY_FILE,
    METADATA_FILE,
    MODEL_FILE,
    Metadata,
    read_metadata,
    redo_offered,
    verify_model_file,
)
from v8.artifacts.model_file import MAX_UNPACKED_BYTES, check_keras_file, require_made_for
from v8.artifacts.run_folder import RunRecord, read_run
from v8.artifacts.series_artifact import README_FILE, artifact_readme
from v8.errors import ArtifactError, PublishError, listed
from v8.hub.manifest import (
    CARD_FILE,
    MANIFEST_FILE,
    DataSpan,
    ListedFile,
    Manifest,
    list_files,
    read_manifest,
    series_folder,
)
from v8.losses.leaderboard import (
    LEADERBOARD_FILE,
    rank_results,
    read_history,
    write_leaderboard_csv,
)
from v8.records import MAX_FILE_BYTES, read_plain
from v8.storage import write_bytes, write_text
from v8.views.card import distinct_versions, model_card


@dataclass(frozen=True)
class Choice:
    """Which models of a run to publish.

    Args:
        is_partial: Whether a run with failed or unfinished series may be published.
        is_only_skilled: Whether models that lose to the naive forecast in any task, by more than chance,
            are held back; those that only a better baseline beats are published, and labelled.
        series: Names of those that are meant; all of the run when empty.
    """

    is_partial: bool = False
    is_only_skilled: bool = False
    series: tuple[str, ...] = ()


@dataclass(frozen=True)
class Kept:
    """Models of a repository that a run does not have and that stay there.

    Args:
        manifest: What is published there.
        metadata: Per series that stays, its `metadata.json`.
    """

    manifest: Manifest
    metadata: Mapping[str, Metadata]

    @property
    def files(self) -> tuple[ListedFile, ...]:
        """The files that stay, as they were published."""
        return tuple(file for series in self.metadata for file in self.manifest.files_of(series))


@dataclass(frozen=True)
class StagedRun:
    """The models of a run that are published, laid out in a folder.

    Args:
        folder: Where the files lie, as they will in the repository.
        repo: Where to, `user/name`.
        record: What the run is.
        metadata: Per series that is published, its `metadata.json`.
        held_back: Per series that is not published: why, as a clause.
        changes: Per series that is not served by the run's first model: the decision that made it so.
    """

    folder: Path
    repo: str
    record: RunRecord
    metadata: Mapping[str, Metadata]
    held_back: Mapping[str, str]
    changes: Mapping[str, Decision] = field(default_factory=dict)

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
                fix="Choose another --repo, or remove all models that the run does not have with --prune",
            )


@dataclass(frozen=True)
class Staged:
    """A staged run, described together with the models that stay in its repository.

    Args:
        run: What lies in the folder.
        manifest: What the repository will hold.
        kept: Models that stay in the repository; None without any.
    """

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
            fix="Train further, or publish without --only-skilled",
        )
    changes = {name: one for name in metadata if (one := serving.renewal_of(name))}
    return StagedRun(folder, repo, record, metadata, held_back, changes).beside(None)


def check_source(source: str, *, is_publishable: bool) -> None:
    """Refuse a simulated market with a `PublishError`."""
    if not is_publishable:
        raise PublishError(
            where=f"--source {source}",
            rule="only models of real markets are published",
            got="a simulated market, about which a forecast says nothing",
            fix="Train on --source vision or files",
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
            fix="Continue the run, or publish what there is with --partial",
        )
    return found


def _stage_artifact(source: Path, target: Path, about: Metadata) -> None:
    """Copy an artefact, so that nobody changes it while it is sent, and check the copy."""
    target.mkdir(parents=True)
    fix = "Restore the file or train the series again"
    for name in (MODEL_FILE, METADATA_FILE, HISTORY_FILE):
        most = MAX_UNPACKED_BYTES if name == MODEL_FILE else MAX_FILE_BYTES
        write_bytes(target / name, read_plain(source / name, fix=fix, most_bytes=most))
    read_history(target / HISTORY_FILE)
    check_keras_file(file := verify_model_file(target, about))
    require_made_for(file, about.series)
    write_text(target / README_FILE, artifact_readme(about))
