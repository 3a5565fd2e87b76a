"""`python -m v8 pull --repo user/name`: published models into the cache of the Hub's client, checked."""

from __future__ import annotations

from typing import Annotated

import typer

from v8.cli.options import OfflineOption, RevisionOption
from v8.tables import Table


def pull(
    repo: Annotated[str, typer.Option("--repo", metavar="USER/NAME", help="Where from.")],
    series: Annotated[
        list[str] | None,
        typer.Option("--series", metavar="BTCUSDT-15m", help="One series; repeat for more. Default: all."),
    ] = None,
    revision: RevisionOption = None,
    offline: OfflineOption = False,
) -> None:
    """Download published models, compare every file with the manifest, and say where they are."""
    from v8.cli.printing import print_lines, print_table
    from v8.hub.pull import pull as fetch

    pulled = fetch(repo, series or (), revision=revision, is_offline=offline)
    files = {name: pulled.manifest.files_of(name) for name in pulled.series}
    rows = []
    for name in pulled.series:
        span, num_bytes = pulled.manifest.data[name], sum(file.size_bytes for file in files[name])
        rows.append((name, span.last_open, span.source, f"{num_bytes:,}"))
    title = f"{repo} at {pulled.revision}, profile {pulled.manifest.profile_name}"
    print_table(Table(("series", "data until", "candles from", "bytes"), rows, title))
    if pulled.why_cached:
        print_lines(f"Not confirmed by the Hub, because {pulled.why_cached}.")
    num_files = sum(map(len, files.values()))
    print_lines(
        f"{num_files} files have the published sha256; {pulled.num_downloaded} of them were downloaded now.",
        f"Folder: {pulled.folder}",
        f'In Python: v8.load("{repo}", "{pulled.series[0]}", revision="{pulled.revision}")',
    )
