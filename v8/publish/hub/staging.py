"""Staging a run for publishing: checked copies of its models in a folder that is laid out as the repository.

Everything about a model is read from its `metadata.json`, and no file contains the current time. So staging
the same run twice gives the same bytes, and publishing it twice changes nothing. Models of the repository
that the run does not have stay there, and manifest, leaderboard and card describe them, too. With
`is_pruning` they are removed in the same commit; older commits keep them. Files of other kinds are not
changed.
"""

import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from v8.base.errors import ArtifactError, PublishError, listed
from v8.base.records import MAX_FILE_BYTES, read_plain
from v8.base.registry import annex_hooks
from v8.base.storage import write_bytes, write_text
from v8.data.market.sources import CandleSource
from v8.forecaster import metadata as artifacts
from v8.forecaster.metadata import (
    HISTORY_FILE,
    METADATA_FILE,
    MODEL_FILE,
    ONNX_FILE,
    Metadata,
    read_metadata,
)
from v8.forecaster.model_file import MAX_UNPACKED_BYTES, check_keras_file, require_made_for
from v8.forecaster.series_artifact import (
    README_FILE,
    ForecastSample,
    artifact_readme,
)
from v8.forecaster.shared_models import require_own_onnx
from v8.forecaster.standalone import FEATURES_FILE, features_file
from v8.model.evaluation.leaderboard import (
    LEADERBOARD_FILE,
    rank_results,
    read_history,
    write_leaderboard_csv,
)
from v8.model.evaluation.significance import LOSES
from v8.publish.hub.client import HubRetryPolicy
from v8.publish.hub.places import (
    CARD_FILE,
    MANIFEST_FILE,
    PICTURE_FILE,
    DataSpan,
    ListedFile,
    Manifest,
    is_published_path,
    list_files,
    read_manifest,
    series_folder,
    series_of,
)
from v8.publish.hub.publish import Difference, Publication, RemoteRepo, RemoteState, check_access
from v8.publish.report.card import FORECAST_PICTURE, Replacements, distinct_versions, model_card
from v8.publish.report.outputs import first_sample
from v8.runs.run_folder import RunRecord, read_run
from v8.runs.serving import FIRST, read_serving


@dataclass
class Staged(Publication):
    """The models of a run that are published, in a folder whose card describes the staying models, too.

    The constructor writes the leaderboard, its picture, the card and the manifest.

    Raises:
        PublishError: If staying models are of another profile, so that one card cannot describe all models.
        ArtifactError: If their metadata cannot be read.
    """

    ordinary = frozenset({".gitattributes", CARD_FILE, "LICENSE", "LICENSE.md", "LICENSE.txt"})
    marker = MANIFEST_FILE
    rule = "a run goes into a new repository, or one that holds a published run"

    folder: Path  # the folder of the files
    repo: str  # the repository, `user/name`
    record: RunRecord  # content of `run.json`
    metadata: Mapping[str, Metadata]  # per series that is published
    held_back: Mapping[str, str]  # per series that is not published: the reason, as a clause
    has_generations: bool = False  # whether a later model than the run's first one serves a series
    replacements: tuple[Replacements, ...] = ()  # what annexes say of such models
    sample: ForecastSample | None = None  # forecasts of the card's picture; None for a card without it
    is_pruning: bool = False  # whether models of the repository that the run does not have are removed
    staying: Mapping[str, Metadata] = field(default_factory=dict)
    """Metadata of the models that stay in the repository although the run does not have them, by series."""
    staying_files: tuple[ListedFile, ...] = ()  # the files of the staying models, as they were published
    manifest: Manifest = field(init=False)  # of the run's models and the staying ones

    def __post_init__(self) -> None:
        digest = self.record.profile_digest
        others = [series for series, model in self.staying.items() if model.profile_digest != digest]
        if others:
            profile = f"{self.record.profile_name} (digest {digest:.12})"
            raise PublishError(
                where=self.repo,
                rule=f"models that stay in the repository are of the profile of the run, {profile}",
                got=f"{len(others)} of another: {listed(others)}",
                fix="Choose another param:repo, or remove all models that the run does not have with "
                "param:prune",
            )
        self._write_descriptions()
        # Read as pulling reads it: what is sent must be accepted there.
        self.manifest = read_manifest(self.folder / MANIFEST_FILE)
        self.paths = tuple(file.path for file in self.files)
        self.title = f"Publish {len(self.metadata)} models of {self.record.profile_name}"

    @property
    def files(self) -> tuple[ListedFile, ...]:
        """Every file of the folder, including the manifest, ascending by path."""
        files = {*self.manifest.files, ListedFile.read(self.folder, MANIFEST_FILE)} - {*self.staying_files}
        return tuple(sorted(files, key=lambda file: file.path))

    def changelog(self, missing: Difference) -> str:
        """Describe the renewed models that are in the commit, and why each was renewed."""
        lines = {series: line for each in self.replacements for series, line in each.lines.items()}
        sent = {series_of(path) for path in missing.additions}
        return "\n".join(line for series, line in sorted(lines.items()) if series in sent)

    def is_removed(self, path: str) -> bool:
        """Return whether a file belongs to a model that is removed."""
        return self.is_pruning and is_published_path(path)

    def merged(self, remote: RemoteRepo, state: RemoteState) -> "Staged":
        """Return what the repository is to hold: the models of the run, and the staying ones.

        Raises:
            PublishError: If it holds another project, or staying models cannot be described.
        """
        self.require_ours(remote, state)
        has_others = {series_of(path) for path in state.files} - {None, *self.metadata}
        staying: dict[str, Metadata] = {}
        files: tuple[ListedFile, ...] = ()
        try:
            if has_others and not self.is_pruning:
                staying, files = self._read_staying(remote, state)
            if staying == self.staying and files == self.staying_files:
                return self
            return replace(self, staying=staying, staying_files=files)
        except ArtifactError as error:
            raise PublishError(
                where=error.where,
                rule=f"a model that the run does not have stays as it was published: {error.rule}",
                got=error.got,
                fix="Publish its run again, or remove models that this run does not have with param:prune",
            ) from error

    def _read_staying(
        self, remote: RemoteRepo, state: RemoteState
    ) -> tuple[dict[str, Metadata], tuple[ListedFile, ...]]:
        """Read the staying models: metadata per series that the run does not have, and all their files."""
        manifest_file = remote.text(MANIFEST_FILE, state)
        manifest = read_manifest(manifest_file)
        folder = manifest_file.parent
        staying: dict[str, Metadata] = {}
        staying_files: list[ListedFile] = []
        for series in manifest.series:
            if series in self.metadata:
                continue
            files = manifest.files_of(series)
            for file in files:
                _require_published(file, remote, state, folder)
            staying[series] = read_metadata(folder / series_folder(series), series=series)
            staying_files += files
        return staying, tuple(staying_files)

    def _write_descriptions(self) -> None:
        """Write the leaderboard, its picture, the card and the manifest."""
        from v8.publish.report import pictures  # noqa: PLC0415 - matplotlib is slow to import

        record = self.record
        models = [model for _, model in sorted({**self.staying, **self.metadata}.items())]
        code = features_file(models[0])
        if code:
            write_text(self.folder / FEATURES_FILE, code)
        if self.sample is not None:
            pictures.draw_sample(self.folder / FORECAST_PICTURE, record.profile_name, self.sample)
        listed_files = (*list_files(self.folder), *self.staying_files)
        is_of_many_runs = bool(self.staying) or self.has_generations
        card = model_card(
            self.repo,
            record,
            models,
            {name: reason for name, reason in self.held_back.items() if name not in self.staying},
            is_of_many_runs=is_of_many_runs,
            replacements=self.replacements,
            files=[file.path for file in listed_files],
        )
        write_text(self.folder / CARD_FILE, card)
        ranked = rank_results(model.result for model in models)
        write_leaderboard_csv(self.folder / LEADERBOARD_FILE, ranked)
        pictures.draw_leaderboard(self.folder / PICTURE_FILE, record.profile_name, ranked)
        versions: Mapping[str, str] = record.versions
        if is_of_many_runs:
            versions = distinct_versions(model.versions for model in models)
        files = (*list_files(self.folder), *self.staying_files)
        spans = {}
        for model in models:
            pin = model.candles
            spans[model.series] = DataSpan(pin.source, pin.first_open, pin.last_open, pin.num_bars)
        manifest = Manifest(
            profile_name=record.profile_name,
            profile_digest=record.profile_digest,
            created_at=max(model.created_at for model in models),
            versions=versions,
            data=spans,
            files=tuple(sorted(files, key=lambda file: file.path)),
        )
        write_text(self.folder / MANIFEST_FILE, manifest.to_text())


def _require_published(file: ListedFile, remote: RemoteRepo, state: RemoteState, folder: Path) -> None:
    """Raise an `ArtifactError` if the Hub lists a file otherwise than it was published.

    The metadata file is downloaded into `folder`, because it will be read there.
    """
    entry = state.files.get(file.path)
    is_intact = entry is not None and entry.size == file.size_bytes
    if entry and entry.lfs:
        is_intact = is_intact and entry.lfs.sha256 == file.sha256
    if is_intact and file.path.endswith(METADATA_FILE):
        remote.text(file.path, state)
        is_intact = file.is_intact_in(folder)
    if not is_intact:
        raise ArtifactError(
            where=f"{remote.name}, {file.path}",
            rule=f"{file.size_bytes:,} bytes with sha256 {file.sha256:.12}",
            got="other content" if entry else "no such file",
            fix="Publish the run again",
        )


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
    """Write the files of a run for publishing into an empty folder.

    Args:
        run: The run folder.
        folder: The empty folder.
        repo: The repository, which the examples of the card name.
        series: Names of the series to publish; all of the run if empty.
        is_partial: Whether a run with failed or unfinished series may be published.
        is_only_skilled: Whether models that lose to the naive forecast in any task are held back; models
            that lose only to another baseline are published, and labelled.
        is_pruning: Whether models of the repository that the run does not have are removed.

    Raises:
        PublishError: If the run was made on the demo market, has unfinished series, or no model is left.
        ArtifactError: If the run is damaged, or a model file is not the one that was evaluated.
    """
    record = read_run(run)
    if not record.is_evaluated:
        raise artifacts.not_evaluated(str(run))
    check_source(record.source, is_publishable=record.is_publishable)
    chosen = set(series) or record.series.keys()
    unfinished = _unfinished(record)
    if unfinished and not is_partial:
        raise PublishError(
            where=str(run),
            rule="a run is published when all its series are done",
            got=f"{len(unfinished)} of {len(record.series)} that are not: {listed([*unfinished])}",
            fix="Continue the run, or publish what there is with param:partial",
        )
    held_back = {name: reason for name, reason in unfinished.items() if name in chosen}
    metadata: dict[str, Metadata] = {}
    serving = read_serving(run)
    for name in sorted((record.series.keys() & chosen) - held_back.keys()):
        target = folder / series_folder(name)
        try:
            model, reason = _stage_series(serving.folder(name), target, name, is_only_skilled=is_only_skilled)
        except ArtifactError:
            if not is_partial:
                raise
            held_back[name] = "its files are damaged"
            shutil.rmtree(target, ignore_errors=True)
            continue
        if reason:
            held_back[name] = reason
        else:
            metadata[name] = model
    if not metadata:
        reasons = [f"{name}, because {reason}" for name, reason in held_back.items()]
        raise PublishError(
            where=str(run),
            rule="publishing needs at least one model",
            got=f"none: {listed(reasons)}" if reasons else "a run without series",
            fix="Train further, or publish without param:only_skilled",
        )
    ranked = rank_results(model.result for model in metadata.values())
    described = [describe(run, metadata.keys()) for describe in annex_hooks("replacements")]
    return Staged(
        folder=folder,
        repo=repo,
        record=record,
        metadata=metadata,
        held_back=held_back,
        has_generations=any(serving.generation_of(name) != FIRST for name in metadata),
        replacements=tuple(each for each in described if each),
        sample=first_sample(serving.folder(row.series) for row in ranked),
        is_pruning=is_pruning,
    )


def check_publishing(repo: str, source: CandleSource, retries: HubRetryPolicy) -> None:
    """Refuse before hours of training what publishing would refuse afterwards.

    Raises:
        PublishError: If the source is simulated, or the token cannot write the repository.
    """
    check_source(source.name, is_publishable=source.is_publishable)
    check_access(repo, retries)


def check_source(source: str, *, is_publishable: bool) -> None:
    """Raise a `PublishError` for a simulated market."""
    if not is_publishable:
        raise PublishError(
            where=f"param:source {source}",
            rule="only models of real markets are published",
            got="a simulated market, about which a forecast says nothing",
            fix="Train on param:source vision or files",
        )


def _unfinished(record: RunRecord) -> dict[str, str]:
    """Return the reason per series that is not done."""
    return {
        name: "its training failed" if state.status == "failed" else "its training is not finished"
        for name, state in record.series.items()
        if state.status != "done"
    }


def _stage_series(
    source: Path, target: Path, series: str, *, is_only_skilled: bool
) -> tuple[Metadata, str | None]:
    """Copy the artefact of a series, unless it is held back.

    Returns:
        Its metadata, and the reason why it is held back; None if it was copied.
    """
    with artifacts.redo_offered(source):
        model = read_metadata(source, series=series)
        result = model.result
        check_source(result.source, is_publishable=not result.is_demo)
        losing_tasks = [task for task, verdict in model.verdicts.items() if verdict.naive.outcome == LOSES]
        if is_only_skilled and losing_tasks:
            return model, f"it loses to the naive forecast: {', '.join(losing_tasks)}"
        _copy_artifact(source, target, model)
        return model, None


def _copy_artifact(source: Path, target: Path, model: Metadata) -> None:
    """Copy an artefact, so that no other process changes it while it is sent, and check the copy."""
    target.mkdir(parents=True)
    fix = "Restore the file or train the series again"
    names = [MODEL_FILE, METADATA_FILE, HISTORY_FILE]
    if model.onnx_sha256 is not None:
        names.append(ONNX_FILE)
    for name in names:
        max_bytes = MAX_UNPACKED_BYTES if name in (MODEL_FILE, ONNX_FILE) else MAX_FILE_BYTES
        write_bytes(target / name, read_plain(source / name, fix=fix, most_bytes=max_bytes))
    read_history(target / HISTORY_FILE)
    file = model.verified_model(target)
    check_keras_file(file)
    require_made_for(file, model.series)
    if model.onnx_sha256 is not None:
        model.verified_onnx(target)
        require_own_onnx(target, model)
    write_text(target / README_FILE, artifact_readme(model))
