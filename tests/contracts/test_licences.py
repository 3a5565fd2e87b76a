"""What others wrote and v8 hands on keeps its notice, and THIRD_PARTY.md tells of it."""

from __future__ import annotations

import re
from importlib.metadata import distribution
from pathlib import Path

from v8.base.storage import digest_bytes, packaged
from v8.publish.report.markup import document

REPOSITORY = Path(__file__).parents[2]
TOLD = (REPOSITORY / "THIRD_PARTY.md").read_text("utf-8")
CHARTS_SHA256 = "e21cc5caa0226ef30bd8549c50b9ef926615f2a4ee6b4e486353477a55f598cf"
"""Of lightweight-charts 5.2.1: dist/lightweight-charts.standalone.production.js in npm."""
SCRIPT = packaged("plotly", "package_data/plotly.min.js")


def words(text: str) -> list[str]:
    """Return the words of a text, however it is set, and whatever year it was installed in."""
    return re.sub(r"20\d\d", "YEAR", re.sub(r"^> ?", "", text, flags=re.MULTILINE)).split()


def test_plotly_s_script_tells_of_its_licence_and_is_in_a_page_byte_for_byte() -> None:
    notice = SCRIPT[:400]
    assert re.search(r"plotly\.js v\d+", notice)
    assert re.search(r"Copyright 2012-20\d\d, Plotly, Inc\.", notice)
    assert "Licensed under the MIT license" in notice
    assert f"<script>{SCRIPT}</script>" in document("Title", "Heading", [], is_demo=False)


def test_the_licence_of_plotly_stands_in_full() -> None:
    (licence,) = [file for file in distribution("plotly").files or () if file.name == "LICENSE.txt"]
    _, _, quoted = TOLD.partition("\n> ")
    assert words(f"> {quoted}") == words(Path(str(licence.locate())).read_text("utf-8"))


def test_the_package_holds_no_other_file_that_others_licensed() -> None:
    ours = {"LICENSE", "v8/annexes/live/app/space.LICENSE"}
    theirs = {"v8/base/vendor/lightweight-charts.js"}
    for folder in ("v8", "configs"):
        for path in (REPOSITORY / folder).rglob("*.*"):
            name = path.relative_to(REPOSITORY).as_posix()
            if path.is_file() and path.suffix not in {".pyc", ".mo"} and name not in ours | theirs:
                assert not re.search(r"copyright|@license", path.read_text("utf-8"), re.IGNORECASE), name


def test_the_vendored_charts_are_as_their_makers_publish_them_and_have_their_licence_and_notice() -> None:
    script = packaged("v8.base", "vendor/lightweight-charts.js")
    assert digest_bytes(script.encode("utf-8")) == CHARTS_SHA256
    assert "Lightweight Charts™ v5.2.1" in script[:200]
    assert "Lightweight Charts 5.2.1" in TOLD
    assert "Apache License" in packaged("v8.base", "vendor/LICENSE-lightweight-charts")[:200]
    assert "https://www.tradingview.com/" in packaged("v8.base", "vendor/NOTICE-lightweight-charts")
