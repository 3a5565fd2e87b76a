"""A page in a thread of this process: a real run, a real exchange on loopback, a real server.

`served` is one for a module: `served.get("/api/health")`; `served.exchange.now_s += 900` moves the clock, and
within `LOOK_S` the server knows. `browser` is a real headless browser (tests/annexes/live/app/devtools.py).
"""

from __future__ import annotations

import json
import shutil
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from exchange_api import ExchangeApi
from made_once import made_once
from module_file import load_module
from tiny_profiles import tiny_ranged_profile

from v8.annexes.live.app.answers import chart
from v8.annexes.live.app.connections import make_server, open_listener
from v8.annexes.live.app.forecast_view import ForecastView
from v8.annexes.live.app.guard import AccessPolicy
from v8.annexes.live.app.server import Site, make_application
from v8.annexes.live.app.service import ForecastIssuer, ForecastService, ModelSource
from v8.data.market.series import Series
from v8.data.market.sources import open_source
from v8.data.market.sources.rest import ExchangeClock, KlinesApi, RestSource
from v8.runs.run_folder import RunFolder, RunRecord

LOOK_S = 0.2
NAMES = ("BTCUSDT-15m", "ETHUSDT-1h")
START_S = 1_735_689_600 - 6 * 3_600 + 420
"""2024-12-31T18:07:00Z, six hours before the demo market ends."""


@dataclass
class Told:
    """An answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode("utf-8")

    def json(self) -> Any:
        return json.loads(self.body)


def ask(url: str, method: str = "GET", headers: Mapping[str, str] | None = None) -> Told:
    """Ask for an address as it is written."""
    request = urllib.request.Request(url, headers=dict(headers or {}), method=method)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=60) as answer:
            return Told(answer.status, {**answer.headers}, answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return Told(error.code, {**error.headers}, error.read())


@pytest.fixture
def fetch() -> Callable[[str], Told]:
    """Return what asks for an address."""
    return ask


@dataclass
class Served:
    """A page that is served.

    Args:
        url: Its address, without a final slash.
        run: The run folder; free to be changed.
        exchange: Where its candles come from.
        told: What the operator read.
    """

    url: str
    run: Path
    exchange: ExchangeApi
    told: list[str] = field(default_factory=list)

    def get(self, path: str, *, method: str = "GET", **headers: str) -> Told:
        """Ask for a path as it is written."""
        return ask(self.url + path, method, headers)

    def is_told(self, words: str) -> bool:
        """Ask for anything, and tell whether the operator read some words by then."""
        self.get("/api/health")
        return any(words in line for line in self.told)

    def until(self, is_so: Callable[[], bool]) -> None:
        """Wait until something holds, at most a minute."""
        for _ in range(600):
            if is_so():
                return
            time.sleep(0.1)
        raise AssertionError("it did not come to hold within a minute")


@pytest.fixture(scope="session")
def fleet_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a tiny run of two series, once for all processes; look, do not touch."""
    profile = tiny_ranged_profile(training={"epochs": 1})

    def train(home: Path) -> None:
        from v8.runs.events import RunObserver
        from v8.runs.local import InProcessEngine
        from v8.runs.plan import Job, Recipe

        def job(name: str) -> Job:
            candles = open_source("demo").candles(Series.parse(name), profile.newest_bars)
            return Job(Recipe(profile, is_publishable=True), candles, 7, home / "tiny" / name)

        record = RunRecord.begin(profile, "files", True, "python -m v8 run")
        with pytest.MonkeyPatch.context() as patch, RunFolder(home / "tiny", record) as folder:
            patch.setenv("V8_HOME", str(home / "caches"))
            for outcome in InProcessEngine().train([job(name) for name in NAMES], RunObserver()):
                assert outcome.reason is None, outcome.trace
            for name in NAMES:
                folder.set_state(Series.parse(name), status="done")

    home, _ = made_once(tmp_path_factory, "fleet", train)
    return home / "tiny"


@pytest.fixture(scope="session")
def serve(
    fleet_run: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., AbstractContextManager[Served]]:
    """Return what serves a copy of the run while its block lasts."""

    @contextmanager
    def serving(policy: AccessPolicy | None = None, **tools: Any) -> Iterator[Served]:
        run = tmp_path_factory.mktemp("served") / "tiny"
        shutil.copytree(fleet_run, run)
        messages: list[str] = []
        with ExchangeApi(now_s=START_S) as exchange, pytest.MonkeyPatch.context() as patch:
            patch.setenv("NO_PROXY", "127.0.0.1")
            patch.setenv("V8_REST_URL", exchange.url)
            patch.setattr("v8.data.market.sources.rest.MOST_APART_S", float("inf"))  # its time is years ago
            for name in NAMES:
                exchange.put(name, open_source("demo").candles(Series.parse(name), 900).to_frame())
            api = KlinesApi()
            source = RestSource(api, ExchangeClock(api.time_s, most_age_s=0.0))
            options: dict[str, Any] = {"issue": ForecastIssuer(source), "record": lambda: None}
            options |= {"refresh_s": LOOK_S, "chart": partial(chart, source=source)} | tools
            options |= {"present": source.now_s, "notify": messages.append}
            service = ForecastService(ModelSource(run), ForecastView, **options)
            service.start(60)
            listener = open_listener("127.0.0.1", 0, messages.append)
            server = make_server(
                make_application(Site(service, source.name), policy or AccessPolicy()), listener.limiter
            )
            thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
            thread.start()
            try:
                yield Served(f"http://127.0.0.1:{listener.getsockname()[1]}", run, exchange, messages)
            finally:
                server.should_exit = True
                thread.join(timeout=30)
                service.close()
            assert not thread.is_alive()

    return serving


@pytest.fixture(scope="module")
def served(serve: Callable[..., AbstractContextManager[Served]]) -> Iterator[Served]:
    """A page of two series, at 18:07 of the last simulated day."""
    with serve() as page:
        yield page


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Any]:
    """Open a browser; see `devtools.Browser`."""
    module = load_module(Path(__file__).with_name("devtools.py"))
    program = module.find_browser()
    if program is None:
        pytest.skip("no browser: install Chromium or Chrome, or name one in V8_TEST_BROWSER")
    with module.Browser(program, tmp_path / "browser") as opened:
        yield opened
