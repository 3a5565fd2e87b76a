"""What the command `forecast` does and prints; it continues where it was interrupted."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from v8.annexes.live.ledger import DEFAULT_LEDGER
from v8.annexes.live.ledger.database import Ledger
from v8.annexes.live.ledger.posting import Wishes, keep_sending, send_messages
from v8.annexes.live.ledger.receiver import MessageReceiver
from v8.annexes.live.ledger.watching import LedgerUpdater, ServingModels, UpdateResult, request_delay_s
from v8.base.errors import SeriesError, V8Error
from v8.base.http_client import in_thread
from v8.base.process import command, quiet_start, set_exit_message, with_progress
from v8.base.terminal import print_lines, print_message
from v8.base.wording import plural
from v8.cli.shared import place_words, settle_process
from v8.data.market.series import iso
from v8.data.market.sources.source import CandleSource


def forecast_into_ledger(
    place: Path | str,
    find_models: Callable[[], ServingModels],
    ledger_file: Path,
    open_candles: Callable[[], CandleSource],
    *,
    receiver: MessageReceiver | None,
    wishes: Wishes,
    is_for_ever: bool,
    continue_command: str,
) -> int:
    """Write the forecasts of a place's models into a ledger, print a summary, and return the exit code.

    Args:
        place: The place of the models.
        find_models: Opens the models.
        ledger_file: Path of the ledger.
        open_candles: Opens the source of candles.
        receiver: Gets messages about what happens; None without one.
        wishes: What it gets of the forecasts.
        is_for_ever: Whether to continue at every close until the process ends.
        continue_command: What the user is told to call after an interruption.
    """
    set_exit_message(f"interrupted: {ledger_file} is whole. Continue with: {continue_command}")
    settle_process()
    with quiet_start():
        models = find_models()  # first: no file is made if there are no models
    with Ledger.open_to_write(ledger_file) as ledger:
        ledger.require_intact()
        _open_models(models)
        ledger_place = ledger.place(place)
        updater = LedgerUpdater(
            models,
            open_candles,
            ledger,
            ledger_place,
            notify=print_message,
            delay_s=request_delay_s(ledger_place) if is_for_ever else 0,
            wishes=wishes if receiver else None,
        )
        if receiver and is_for_ever:
            in_thread(partial(keep_sending, ledger_file, ledger_place, receiver, print_message))
        if is_for_ever:

            def report(result: UpdateResult) -> None:
                next_close = iso(updater.next_close_s(result.now_s))
                print_lines(f"{_summary(result)}; next at {next_close}")

            updater.run_forever(report)
        result = updater.update()
        track_words = list(place_words(place))
        if ledger_file != DEFAULT_LEDGER:
            track_words += ["--ledger", str(ledger_file)]
        print_lines(
            f"{_summary(result)}.", f"Ledger: {ledger_file}. Its record: {command('track', *track_words)}"
        )
        if receiver:
            send_messages(ledger_file, ledger_place, receiver)
    if not result.failures:
        return 0
    if result.num_issued:
        return SeriesError.exit_code
    first_error = next(iter(result.failures.values()))
    return first_error.exit_code


def _open_models(models: ServingModels) -> None:
    """Open all models before the first update; this starts TensorFlow, which prints."""
    with quiet_start():
        for name in with_progress(models.series, "Opening models"):
            with suppress(V8Error):  # the first update reports it
                models.forecaster(name)


def _summary(result: UpdateResult) -> str:
    late = f" ({result.num_late} late)" if result.num_late else ""
    failed = f", {len(result.failures)} series failed" if result.failures else ""
    issued = plural(result.num_issued, "forecast")
    return f"{iso(result.now_s)}: {issued} issued{late}, {result.num_scored} scored{failed}"
