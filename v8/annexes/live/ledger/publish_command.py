"""What `track --publish` does: send the live record as a dataset of the Hub.

Apart from printing.py, since the client of the Hub reads its address while it is imported: a record that is
only printed must not fail because of that address.
"""

import time
from pathlib import Path

from v8.annexes.live.ledger.database import Ledger
from v8.annexes.live.ledger.publishing import LedgerDataset
from v8.base.storage import passing_folder
from v8.base.terminal import print_message
from v8.cli.shared import publish_staged
from v8.publish.hub.client import check_repo_name


def publish_record(ledger: Path, place: Path | str, repo: str, *, is_repairing: bool = False) -> None:
    """Publish the live record of a place as a dataset, and print to standard error what was sent.

    Args:
        ledger: The database of forecasts.
        place: Of the models: a run folder, or a repository on the Hub.
        repo: The dataset on the Hub, USER/NAME.
        is_repairing: Send the days again of which rows were published more than once.

    Raises:
        PublishError: If it cannot be published, if there are such days and they are not repaired, or the
            ledger lacks a row that was published.
    """
    check_repo_name(repo, "--publish")
    with Ledger.open(ledger) as opened_ledger, passing_folder("v8-record") as folder:
        staged = LedgerDataset(folder, repo, opened_ledger, place, int(time.time()), is_repairing)
        published = publish_staged(staged, repo, print_message)
    unsent = f"Nothing was sent: {published.url} has closes of today, or all that there is."
    print_message(f"Published: {published.url}" if published.sent else unsent)
