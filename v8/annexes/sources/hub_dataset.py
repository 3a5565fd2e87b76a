"""The source `hub`: a dataset on the Hugging Face Hub with one CSV for each series, as the lineage has it.

    klines_binance_us/{SYM}/{SYM}_{TF}_binance_us.csv    open_time, open, high, low, close, volume, close_time

`V8_HUB_DATASET` names it, `USER/NAME` or `USER/NAME@REVISION`; the Hub is that of `HF_ENDPOINT`. The commit
of the revision is requested once, so that all series of a run come from the same commit. The newest candle is
as old as the last update of the files; `predict` says how old it is. Only public datasets: no token is sent.
"""

import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Annotated, ClassVar, Final

from pydantic import BaseModel, Field, ValidationError

from v8.base.errors import DataError, ProfileError, UnknownSeriesError, shown
from v8.data.market.candles import Candles, require_num_bars
from v8.data.market.checks import check_candles
from v8.data.market.series import Series
from v8.data.market.sources.downloads import Address, Downloader, read_address
from v8.data.market.sources.tables import read_csv_table

DATASET_VARIABLE: Final = "V8_HUB_DATASET"
DEFAULT_DATASET: Final = "zongowo111/cpb-models"
ENDPOINT_VARIABLE: Final = "HF_ENDPOINT"
DEFAULT_ENDPOINT: Final = "https://huggingface.co"
MAX_CSV_BYTES: Final = 64 << 20  # 10,000 rows have 1 MB; half a million still fit
MAX_ANSWER_BYTES: Final = 8 << 20  # the Hub's description of a revision lists all its files
_NAME: Final = re.compile(
    r"(?P<repo>[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95})(@(?P<revision>[A-Za-z0-9][\w.-]{0,99}))?"
)


class _Revision(BaseModel):
    """The Hub's description of a revision; only its commit is read."""

    sha: Annotated[str, Field(strict=True, pattern="^[0-9a-f]{40}$")]


@dataclass(frozen=True)
class Dataset:
    """A dataset at a revision: a branch, a tag or a commit."""

    repo: str
    revision: str


@dataclass(frozen=True, eq=False, kw_only=True)
class HubSource:
    """Candles from a dataset on the Hub: that of `V8_HUB_DATASET`, else the lineage's."""

    name: ClassVar = "hub"
    is_publishable: ClassVar = True

    dataset: Dataset = field(default_factory=lambda: read_dataset(os.environ.get(DATASET_VARIABLE)))
    downloader: Downloader = field(default_factory=partial(Downloader, ENDPOINT_VARIABLE))
    now: Callable[[], float] = time.time  # clock in seconds since the epoch

    @property
    def dataset_name(self) -> str:
        """The dataset, `user/name`: model cards name it."""
        return self.dataset.repo

    def candles(self, series: Series, num_bars: int, end_s: int | None = None) -> Candles:
        """Return the newest closed candles of the dataset; see `CandleSource`."""
        require_num_bars(num_bars, series)
        path = f"klines_binance_us/{series.symbol}/{series.symbol}_{series.timeframe}_binance_us.csv"
        url = f"{self._address.url}/datasets/{self.dataset.repo}/resolve/{self._commit}/{path}"
        content = self.downloader.fetch(url, max_bytes=MAX_CSV_BYTES, auth=self._address.auth)
        if content is None:
            raise UnknownSeriesError(
                where=f"{series} from {self.name}",
                rule=f"needs {path} in the dataset {self.dataset.repo}",
                got="no such file",
                fix=f"Choose another series, or name another dataset in {DATASET_VARIABLE}",
            )
        table = read_csv_table(content, series, url)
        return check_candles(table, series, source=self.name, now_s=int(self.now())).newest(num_bars, end_s)

    @cached_property
    def _address(self) -> Address:
        return read_address(ENDPOINT_VARIABLE, DEFAULT_ENDPOINT, "a Hub")

    @cached_property
    def _commit(self) -> str:
        """The commit to which the revision points now."""
        repo = self.dataset.repo
        revision = self.dataset.revision
        url = f"{self._address.url}/api/datasets/{repo}/revision/{revision}"
        answer = self.downloader.fetch(url, max_bytes=MAX_ANSWER_BYTES, auth=self._address.auth)
        try:
            return _Revision.model_validate_json(answer or b"").sha
        except ValidationError as error:
            raise DataError(
                where=url,
                rule="must return the commit of a public dataset",
                got="no such dataset or revision" if answer is None else repr(shown(str(answer[:40]))),
                fix=f"Check {DATASET_VARIABLE}, and that the Hub can be reached",
            ) from error


def read_dataset(name: str | None) -> Dataset:
    """Read the name of a dataset, `USER/NAME` or `USER/NAME@REVISION`; None means the lineage's."""
    parts = _NAME.fullmatch(name or DEFAULT_DATASET)
    if not parts or ".." in parts[0]:
        raise ProfileError(
            where=DATASET_VARIABLE,
            rule="names a dataset on the Hub, USER/NAME or USER/NAME@REVISION",
            got=repr(name),
            fix=f"Correct it, or unset it for {DEFAULT_DATASET}",
        )
    return Dataset(parts["repo"], parts["revision"] or "main")
