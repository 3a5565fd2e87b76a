"""Staging a run for publishing: its models, checked, in a folder as they will lie in the repository.

Everything that is said about a model is read from its `metadata.json`; nothing here takes the time of
day. Staging the same run twice gives the same bytes, so publishing it twice changes nothing. Models that the
run does not have stay, and manifest, leaderboard and card tell of them, too; with `is_pruning` they are
removed in the same commit, and older commits keep them. Files of other kinds stay untouched.
"""

import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from v8 import records
from v8.artifacts import metadata as artifacts
from v8.artifacts.metadata import HISTORY_FILE, METADATA_FILE, MODEL_FILE, Metadata, read_metadata
from v8.artifacts.model_file import MAX_UNPACKED_BYTES, check_keras_file, require_made_for
from v8.artifacts.nested_runs import Decision, read_serving
from v8.artifacts.run_folder import RunRecord, read_run
from v8.artifacts.series_artifact import README_FILE, artifact_readme
from v8.errors import ArtifactError, PublishError, listed
from v8.evaluation.leaderboard import LEADERBOARD_FILE, rank_results, read_history, write_leaderboard_csv
from v8.hub import layout
from v8.hub.client import told
from v8.hub.layout import CARD_FILE, MANIFEST_FILE, DataSpan, ListedFile, Manifest, series_folder, series_of
from v8.hub.publish import Difference, Publication, RemoteRepo, RemoteState
from v8.reports.card import change_line, distinct_versions, model_card
from v8.storage import write_bytes, write_text


@dataclass
class Staged(Publication):
    """The models of a run that are published, in a folder that tells of those that stay, too.

    Making one writes leaderboard, its picture, card and manifest.

    Raises:
        PublishError: If models that stay are of another profile, so that no one card can tell of all.
        ArtifactError: If their metadata cannot be read.
    """

    ordinary = frozenset({".gitattributes", CARD_FILE, "LICENSE", "LICENSE.md", "LICENSE.txt"})
    marker = MANIFEST_FILE
    rule = "a run goes into a new repository, or one that holds a published run"

    folder: Path  # where
    repo: str  # where to, `user/name`
    record: RunRecord  # what the run is
    metadata: Mapping[str, Metadata]  # per series that is published
    held_back: Mapping[str, str]  # per series that is not published: why, as a clause
    changes: Mapping[str, Decision] = field(default_factory=dict)
    """Per series that is not served by the run's first model: the decision that made it so."""
    is_pruning: bool = False  # whether models of the repository that the run does not have go
    staying: Mapping[str, Metadata] = field(default_factory=dict)
    """Of models of the repository that the run does not have and that stay there, by series."""
    kept: tuple[ListedFile, ...] = ()  # their files, as they were published
    manifest: Manifest = field(init=False)  # of the run's models and those that stay

    def __post_init__(self) -> None:
        digest = self.record.profile_digest
        others = [series for series, about in self.staying.items() if about.profile_digest != digest]
        if others:
            words = {"profile": self.record.profile_name, "digest": digest, "num": len(others)}
            raise PublishError(**told("stage", "OTHERS", where=self.repo, **words, series=listed(others)))
        self._describe()
        # What is sent must be what pulling accepts.
        self.manifest = layout.read_manifest(self.folder / MANIFEST_FILE)
        self.paths = tuple(file.path for file in self.files)
        self.title = f"Publish {len(self.metadata)} models of {self.record.profile_name}"

    @property
    def files(self) -> tuple[ListedFile, ...]:
        """Every file of the folder, the manifest included, ascending by path."""
        files = {*self.manifest.files, ListedFile.read(self.folder, MANIFEST_FILE)} - {*self.kept}
        return tuple(sorted(files, key=lambda file: file.path))

    def changelog(self, missing: Difference) -> str:
        """Say what of the renewed models the commit brings, and why each was renewed."""
        brought = self.changes.keys() & map(series_of, missing.additions)
        return "\n".join(change_line(self.changes[series]) for series in sorted(brought))

    def is_passing(self, path: str) -> bool:
        """Tell whether a file is of a model that goes."""
        return self.is_pruning and layout.is_published_path(path)

    def settled(self, remote: RemoteRepo, seen: RemoteState) -> "Staged":
        """Return what the repository is to hold: the run, beside the models that stay.

        Raises `PublishError` if it holds another project, or models that stay cannot be told of.
        """
        self.require_ours(remote, seen)
        has_others = {*map(series_of, seen.files)} - {None, *self.metadata}
        try:
            staying, kept = self._found(remote, seen) if has_others and not self.is_pruning else ({}, ())
            is_told = (staying, kept) == (self.staying, self.kept)
            return self if is_told else replace(self, staying=staying, kept=kept)
        except ArtifactError as error:
            raise PublishError(**told("stage", "STAYING", error=error)) from error

    def _found(
        self, remote: RemoteRepo, seen: RemoteState
    ) -> tuple[dict[str, Metadata], tuple[ListedFile, ...]]:
        """Read what stays: per series that is not ours its metadata, and its files in the manifest."""
        manifest_file = remote.text(MANIFEST_FILE, seen)
        manifest = layout.read_manifest(manifest_file)
        folder = manifest_file.parent
        staying: dict[str, Metadata] = {}
        kept: list[ListedFile] = []
        for series in manifest.series:
            if series not in self.metadata:
                for file in (files := manifest.files_of(series)):
                    _require_published(file, remote, seen, folder)
                staying[series] = read_metadata(folder / series_folder(series), series=series)
                kept += files
        return staying, tuple(kept)

    def _describe(self) -> None:
        """Write leaderboard, its picture, card and manifest."""
        from v8.reports.pictures import draw_leaderboard  # noqa: PLC0415 - matplotlib is slow to import

        record = self.record
        together = [about for _, about in sorted({**self.staying, **self.metadata}.items())]
        is_of_many_runs = bool(self.staying or self.changes)
        held_back = {name: why for name, why in self.held_back.items() if name not in self.staying}
        changes = self.changes.values()
        card = model_card(
            self.repo, record, together, held_back, is_of_many_runs=is_of_many_runs, changes=changes
        )
        write_text(self.folder / CARD_FILE, card)
        ranked = rank_results(about.result for about in together)
        write_leaderboard_csv(self.folder / LEADERBOARD_FILE, ranked)
        draw_leaderboard(self.folder / layout.PICTURE_FILE, record.profile_name, ranked)
        files = (*layout.list_files(self.folder), *self.kept)
        made_with = (about.versions for about in together)
        spans = {
            name: DataSpan(seen.source, seen.first_open, seen.last_open, seen.num_bars)
            for name, seen in ((about.series, about.candles) for about in together)
        }
        manifest = Manifest(
            profile_name=record.profile_name,
            profile_digest=record.profile_digest,
            created_at=max(about.created_at for about in together),
            versions=distinct_versions(made_with) if is_of_many_runs else record.versions,
            data=spans,
            files=tuple(sorted(files, key=lambda file: file.path)),
        )
        write_text(self.folder / MANIFEST_FILE, manifest.to_text())


def _require_published(file: ListedFile, remote: RemoteRepo, seen: RemoteState, folder: Path) -> None:
    """Refuse a file that is not listed as it was published; download the metadata, which is read."""
    entry = seen.files.get(file.path)
    is_whole = entry is not None and entry.size == file.size_bytes
    if entry and entry.lfs:
        is_whole = is_whole and entry.lfs.sha256 == file.sha256
    if is_whole and file.path.endswith(METADATA_FILE):
        remote.text(file.path, seen)
        is_whole = file.is_whole_in(folder)
    if not is_whole:
        said = "other content" if entry else "no such file"
        raise ArtifactError(**told("stage", "KEPT", where=remote.name, file=file, said=said))


def stage_run(
    run: Path,
    folder: Path,
    repo: str,
    *,
    series: Collection[str] = (),
    is_partial: bool = False,
    is_only_skilled: bool = False,
    is_pruning: bool = False,
) -> Staged:
    """Lay out a run in an empty folder for publishing; the examples of its card name the repository.

    Args:
        series: Names of those that are meant; all of the run when empty.
        is_partial: Whether a run with failed or unfinished series may be published.
        is_only_skilled: Whether models that lose to the naive forecast in any task, by more than chance, are
            held back; those that only a better baseline beats are published, and labelled.
        is_pruning: Whether models of the repository that the run does not have go.

    Raises:
        PublishError: If the run was made on the demo market, has unfinished series, or no model is left.
        ArtifactError: If the run is damaged, or a model file is not the one that was evaluated.
    """
    record = read_run(run)
    if not record.is_evaluated:
        raise artifacts.not_evaluated(str(run))
    check_source(record.source, is_publishable=record.is_publishable)
    meant = set(series) or record.series.keys()
    unfinished = _unfinished(record)
    if unfinished and not is_partial:
        words = {"num": len(unfinished), "all": len(record.series), "series": listed([*unfinished])}
        raise PublishError(**told("stage", "UNFINISHED", where=run, **words))
    held_back = {name: why for name, why in unfinished.items() if name in meant}
    metadata = {}
    serving = read_serving(run)
    for name in sorted((record.series.keys() & meant) - held_back.keys()):
        try:
            served = serving.folder(name)
            with artifacts.redo_offered(served):
                about = read_metadata(served, series=name)
                result = about.result
                check_source(result.source, is_publishable=not result.is_demo)
                if is_only_skilled and (losing := result.evaluation.loses):
                    held_back[name] = f"it loses to the naive forecast: {', '.join(losing)}"
                    continue
                _stage_artifact(served, folder / series_folder(name), about)
        except ArtifactError:
            if not is_partial:
                raise
            held_back[name] = "its files are damaged"
            shutil.rmtree(folder / series_folder(name), ignore_errors=True)
        else:
            metadata[name] = about
    if not metadata:
        reasons = [f"{name}, because {reason}" for name, reason in held_back.items()]
        said = f"none: {listed(reasons)}" if reasons else "a run without series"
        raise PublishError(**told("stage", "NO_MODEL", where=run, said=said))
    changes = {name: one for name in metadata if (one := serving.renewal_of(name))}
    return Staged(folder, repo, record, metadata, held_back, changes, is_pruning)


def check_source(source: str, *, is_publishable: bool) -> None:
    """Refuse a simulated market with a `PublishError`."""
    if not is_publishable:
        raise PublishError(**told("stage", "SIMULATED", source=source))


def _unfinished(record: RunRecord) -> dict[str, str]:
    """Return per series that is not done: why."""
    return {
        name: "its training failed" if state.status == "failed" else "its training is not finished"
        for name, state in record.series.items()
        if state.status != "done"
    }


def _stage_artifact(source: Path, target: Path, about: Metadata) -> None:
    """Copy an artefact, so that nobody changes it while it is sent, and check the copy."""
    target.mkdir(parents=True)
    fix = "Restore the file or train the series again"
    for name in (MODEL_FILE, METADATA_FILE, HISTORY_FILE):
        most = MAX_UNPACKED_BYTES if name == MODEL_FILE else records.MAX_FILE_BYTES
        write_bytes(target / name, records.read_plain(source / name, fix=fix, most_bytes=most))
    read_history(target / HISTORY_FILE)
    check_keras_file(file := about.verified_model(target))
    require_made_for(file, about.series)
    write_text(target / README_FILE, artifact_readme(about))
