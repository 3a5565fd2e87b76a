"""Passes a case to v8 in a child process, and evaluates the result."""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import shutil
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pandas as pd
from odd_values import ARRAYS, OBJECTS

from fuzzing.calls import call_at_random
from fuzzing.cases import (
    MONTH,
    ODD_VALUES,
    SERIES,
    Case,
    archive_case,
    candles_case,
    covariates_case,
    day_case,
    odd_candles,
    odd_frame,
    plan_case,
    profile_case,
    record_case,
    seed_case,
    words_case,
)
from fuzzing.days import DAY, OURS, compare_day
from fuzzing.given import TABLE
from fuzzing.graphs import GRAPH, graph_case, use_graph
from fuzzing.ledgers import LEDGER, ledger_case, use_ledger
from fuzzing.markets import check_market, odd_market
from fuzzing.messages import check_message, message_with_secret
from fuzzing.prices import compare_precisions
from fuzzing.searches import record_of_search_case, use_record
from v8.base.errors import MAX_MESSAGE, V8Error
from v8.cli.app import app
from v8.data.market.companions import read_user_table
from v8.data.market.series import load_universe
from v8.data.market.sources.files import FilesSource
from v8.data.market.sources.tables import read_csv_table
from v8.data.market.sources.vision import _read_zip
from v8.forecaster.forecaster import LeftOutWarning, SeenCandlesWarning, checked_candles
from v8.forecaster.metadata import read_metadata
from v8.forecaster.series_artifact import read_sample
from v8.model.evaluation.leaderboard import read_history
from v8.profile.profile import TABLES_PLACE, key_places, load_profile, recorded_profile
from v8.publish.hub.places import read_manifest
from v8.publish.hub.staging import stage_run
from v8.publish.report.backtest import backtest_page
from v8.runs.backtest import read_plan
from v8.runs.backtest import read_results as read_results_of
from v8.runs.run_folder import read_run

CPU_LIMIT_S = 2.0
"""Processor time of an input: unlike the clock's, it does not depend on what else the machine does."""

MEMORY_LIMIT_BYTES = 1 << 30
"""What the process may grow by for one input."""


@dataclass(frozen=True)
class Verdict:
    """What came of a case: `accepted`, `refused` or `failed`, and why."""

    kind: str
    outcome: str
    why: str = ""


def _load_profile(case: Case) -> None:
    (name,) = case.files
    load_universe(Path(name)) if name.startswith("universe") else load_profile(name)


def _read_odd_candles(random: Random) -> None:
    """Read candles as they were handed over: what is wrong is refused, what is right is what it was."""
    candles, wrong, frame = odd_candles(random)
    digest_of_frame = checked_candles(frame, SERIES).digest
    try:
        table = read_csv_table(candles, SERIES, "a CSV") if isinstance(candles, bytes) else candles
        digest = checked_candles(table, SERIES).digest
    except V8Error as error:
        if wrong:
            raise
        raise AssertionError(f"refused, although nothing is wrong: {error}") from error
    if wrong:
        raise AssertionError(f"accepted, {wrong}")
    if digest != digest_of_frame:
        raise AssertionError("accepted as other candles than they are")


def _read_covariates(case: Case) -> None:
    """Read a table of the user's: every line but the header is a row of its own."""
    os.environ[TABLES_PLACE] = str(Path.cwd())
    num_rows = len(read_user_table(TABLE).time_us)
    lines = io.StringIO(case.files[TABLE.file].decode("utf-8-sig"), newline=None)
    num_lines = sum(line != "\n" for line in lines)
    if num_rows != num_lines - 1:
        raise AssertionError(f"{num_rows} rows of {num_lines} lines")


def _read_run(case: Case) -> None:
    path = next(path for path in case.files if path.endswith("metadata.json"))
    folder = Path(path).parent
    if case.name == "manifest.json":
        read_manifest(Path(next(path for path in case.files if path.endswith("manifest.json"))))
        return
    read_run(Path.cwd())
    metadata = read_metadata(folder, series=folder.name)
    _ = metadata.result, metadata.evaluation
    read_sample(folder / "forecasts.json")
    read_history(folder / "history.csv")
    Path("../staged").mkdir()
    stage_run(Path.cwd(), Path("../staged"), "user/name")


def _read_plan(case: Case) -> None:
    plan = read_plan(Path.cwd())
    if case.name == "fold":
        raise AssertionError("a fold counted twice")
    if case.name == "profile" and load_profile("range_paths") != recorded_profile(
        plan.profile, where="the plan"
    ):
        raise AssertionError("an edited profile under its old digest")
    backtest_page(read_results_of(Path.cwd(), plan))


def _call(random: Random) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SeenCandlesWarning)
        warnings.simplefilter("ignore", LeftOutWarning)
        call_at_random(random, RUN[0], SERIES, ODD_VALUES, odd_frame(random))


def _change_keys(random: Random) -> None:
    """Change one to three keys of a profile to values of any kind."""
    values = (*ODD_VALUES, *ARRAYS, *OBJECTS)
    keys = [*key_places()]
    changes = {random.choice(keys): random.choice(values) for _ in range(random.choice((1, 1, 2, 3)))}
    profile = load_profile(random.choice(("frontier", "aligned", "stable", "range_paths")))
    if profile.but(**changes).name != profile.but(**changes).name:
        raise AssertionError("the same changes make two profiles")


def _call_command(case: Case) -> None:
    output = io.StringIO()
    errors = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        try:
            app(args=list(case.words), prog_name="python -m v8")
        except SystemExit as end:
            code = end.code or 0
    fault = next(filter(None, map(_fault_of, errors.getvalue().splitlines())), None)
    if fault:
        raise AssertionError(fault)
    unprintable = [letter for letter in output.getvalue() if not letter.isprintable() and letter != "\n"]
    if unprintable:
        raise AssertionError(f"{unprintable[0]!r} on standard output")
    if code:
        raise _ExitedError(str(code))


RUN: list[Path] = []
"""The finished run that calls are of."""


class _ExitedError(Exception):
    """A command ended with another status than 0, in sound sentences."""


@dataclass(frozen=True)
class Kind:
    """A kind of inputs.

    Args:
        share: Percent of all inputs; command lines take the longest.
        make: Makes one.
        use: Passes one to v8, in the folder that its files are in.
    """

    share: int
    make: Callable[[Random], Case]
    use: Callable[[Case], object]


def _drawn(share: int, use: Callable[[Random], object]) -> Kind:
    """Return a kind whose input is drawn from a seed where it is used."""
    return Kind(share, seed_case, lambda case: use(Random(int(case.words[0]))))


KINDS: dict[str, Kind] = {
    "profiles": Kind(14, profile_case, _load_profile),
    "candles": Kind(11, candles_case, lambda case: FilesSource(Path.cwd()).candles(SERIES, 1_000)),
    "prices": _drawn(2, compare_precisions),
    "archives": Kind(
        7,
        archive_case,
        lambda case: _read_zip(case.files["answer.zip"], SERIES, pd.Period(MONTH, "M"), "answer.zip"),
    ),
    "markets": _drawn(4, lambda random: check_market(odd_market(random, SERIES), SERIES)),
    "frames": _drawn(10, lambda random: checked_candles(odd_frame(random), SERIES)),
    "rewritten": _drawn(7, _read_odd_candles),
    "covariates": Kind(5, covariates_case, _read_covariates),
    "records": Kind(12, lambda random: record_case(random, RUN[0]), _read_run),
    "plans": Kind(5, plan_case, _read_plan),
    "ledgers": Kind(3, ledger_case, lambda case: use_ledger(Path(LEDGER))),
    "messages": Kind(
        1,
        lambda random: Case("message", words=message_with_secret(random)),
        lambda case: check_message(*case.words),
    ),
    "days": Kind(2, day_case, lambda case: compare_day(case.name, case.files[OURS], case.files[DAY])),
    "searches": Kind(2, record_of_search_case, lambda case: use_record(Path.cwd() / case.name)),
    "graphs": Kind(3, graph_case, lambda case: use_graph(Path(GRAPH))),
    "calls": _drawn(3, _call),
    "changes": _drawn(3, _change_keys),
    "words": Kind(6, words_case, _call_command),
}


def evaluate(case: Case, folder: Path) -> Verdict:
    work = folder / "case" / "work"
    work.mkdir(parents=True)
    for path, content in case.files.items():
        (work / path).parent.mkdir(parents=True, exist_ok=True)
        (work / path).write_bytes(content)
    os.chdir(work)
    before = _largest_bytes()
    started = time.process_time()
    outcome, why = _carried_out(case)
    took_s = time.process_time() - started
    grew = _largest_bytes() - before
    os.chdir(folder)
    unexpected = {path.name for path in folder.iterdir()} - {"case", "home", "said.txt", "now.json", "cache"}
    unexpected |= {path.name for path in (folder / "case").iterdir()} - {"work", "staged"}
    shutil.rmtree(folder / "case")
    if unexpected:
        outcome = "failed"
        why = f"written outside: {sorted(unexpected)}"
    elif outcome != "failed" and took_s > CPU_LIMIT_S:
        outcome = "failed"
        why = f"took {took_s:.1f} s of processor time"
    elif outcome != "failed" and grew > MEMORY_LIMIT_BYTES:
        outcome = "failed"
        why = f"took {grew / 1e6:,.0f} MB of memory"
    return Verdict(case.kind, outcome, why)


def _carried_out(case: Case) -> tuple[str, str]:
    try:
        KINDS[case.kind].use(case)
    except V8Error as error:
        fault = _fault_of(str(error))
        return ("failed", fault) if fault else ("refused", type(error).__name__)
    except _ExitedError as ended:
        return "refused", f"exit code {ended}"
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is what is looked for
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/v8/" in frame.filename]
        place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "the fuzzer"
        return "failed", f"{type(error).__name__} at {place}: {error}"[:300]
    return "accepted", ""


def _fault_of(line: str) -> str | None:
    if len(line) > MAX_MESSAGE + len("error: "):
        return f"a message of {len(line):,} characters: {line[:80]!r}"
    if not line.isprintable():
        return f"control characters or line breaks: {line[:80]!r}"
    return f"a traceback: {line[:80]!r}" if line.startswith("Traceback") else None


def _largest_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1_024


def serve(folder: Path, seed: int, run: Path) -> None:
    """Judge what standard input asks for, `KIND NUMBER` or the path of a saved case a line, until it ends.

    Answers on standard output: `begin`, then a verdict. The case at work lies in `now.json`.
    """
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    log = os.open(folder / "said.txt", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    warnings.simplefilter("error")
    warnings.simplefilter("ignore", DeprecationWarning)
    os.environ |= {"V8_HOME": str(folder / "home"), "HF_HOME": str(folder / "cache"), "HF_HUB_OFFLINE": "1"}
    os.environ |= {"V8_VISION_URL": "http://127.0.0.1:9", "CUDA_VISIBLE_DEVICES": "-1"}
    RUN.append(run)
    _warm_up(folder)
    limit = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (limit + 3 * MEMORY_LIMIT_BYTES,) * 2)
    for line in sys.stdin:
        try:
            case = _requested_case(line.strip(), seed)
        except Exception as error:  # noqa: BLE001 - a fault of the fuzzer itself, which must not end it
            traceback.print_exc()
            answers.write(f"begin\n{json.dumps(asdict(Verdict('fuzzer', 'failed', repr(error))))}\n")
            continue
        (folder / "now.json").write_text(case.to_json())
        answers.write("begin\n")
        answers.write(json.dumps(asdict(evaluate(case, folder))) + "\n")


def _requested_case(line: str, seed: int) -> Case:
    """Make a case, which depends on its kind, the seed and its number only, or read a saved one."""
    kind, _, number = line.partition(" ")
    if not number:
        return Case.from_json(Path(line).read_text())
    return replace(KINDS[kind].make(Random(f"{seed}/{kind}/{number}")), kind=kind)


def _warm_up(folder: Path) -> None:
    """Import what commands import late, TensorFlow too: it is no input's doing."""
    dry = ("run", "--source", "demo", "--dry-run", "--series", str(SERIES))
    evaluate(Case("warm-up", words=dry, kind="words"), folder)
    evaluate(
        Case("warm-up", words=("data", "--source", "demo", "--series", str(SERIES)), kind="words"), folder
    )
    for number in range(40):  # forecasts are compiled
        evaluate(Case("warm-up", words=(str(number),), kind="calls"), folder)
    with TemporaryDirectory() as staged:  # pictures are drawn
        stage_run(RUN[-1], Path(staged), "user/name")
