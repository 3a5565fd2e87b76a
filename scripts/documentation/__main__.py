"""Build the site, check its links, or serve it; `scripts/docs` installs what it needs and calls this.

    scripts/docs build | check | serve [PORT] | translated PAGE... | pictures [RUN] | notebooks [NAME...]

The pages are put together in `build/docs`, one build a language; the site lies in `build/site`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parents[1]))

from documentation.links import broken_links
from documentation.notebooks import execute
from documentation.pages import ENGLISH, lagging, mark_translated, stage
from documentation.pictures import make_pictures
from documentation.reference import REPOSITORY

SITE: Final = REPOSITORY / "build" / "site"
PORT: Final = 8010
USAGE: Final = (
    "usage: scripts/docs build | check | serve [PORT] | translated PAGE... | pictures [RUN]"
    " | notebooks [NAME...]"
)


def main(words: list[str]) -> None:
    """Do what the words ask for; exit status 1 where something is broken, 2 for words that mean nothing."""
    match words:
        case ["build"]:
            build()
        case ["check"]:
            build()
            check()
        case ["serve"]:
            build()
            serve(PORT)
        case ["serve", port]:
            build()
            serve(int(port))
        case ["translated", _, *_]:
            for page in words[1:]:
                mark_translated(page)
        case ["pictures", *run] if len(run) <= 1:
            make_pictures(Path(run[0]) if run else None)
        case ["notebooks", *names]:
            execute(names)
        case _:
            sys.exit(USAGE)


def build() -> None:
    """Build every language; a warning of the builder is an error."""
    shutil.rmtree(SITE, ignore_errors=True)
    for settings in stage(REPOSITORY / "build" / "docs"):
        language = settings.parent.name
        words = [
            sys.executable,
            "-m",
            "zensical",
            "build",
            "--clean",
            "--strict",
            "--config-file",
            str(settings),
        ]
        if subprocess.run(words, check=False).returncode:
            sys.exit(f"docs/{language}: the builder warned, see above")
        is_root = language == ENGLISH  # whose page for what is not there serves every language
        leave = None if is_root else shutil.ignore_patterns("404.html")
        target = SITE if is_root else SITE / language
        shutil.copytree(settings.parent / "site", target, ignore=leave, dirs_exist_ok=True)
    print(f"Site: {SITE / 'index.html'}")


def check() -> None:
    """Name every broken link and every page that lags behind, and end with exit status 1 if there is one."""
    faults = [*broken_links(SITE), *lagging()]
    print("\n".join(faults) or "Every link leads somewhere, and no translation lags behind.")
    if faults:
        sys.exit(1)


def serve(port: int) -> None:
    """Serve the site on this machine until Ctrl-C."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(SITE))
    with ThreadingHTTPServer(("127.0.0.1", port), handler) as server:
        print(f"http://127.0.0.1:{server.server_port}/  (Ctrl-C ends it)")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return


if __name__ == "__main__":
    main(sys.argv[1:])
