"""Tables of the user's: which row counts for which bar, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from v8.base.errors import DataError
from v8.data.market.companions import Companions, read_user_table, user_table
from v8.profile.settings import TableSettings
from v8.runs.options import PreparedRun, RunOptions

HOUR_S = 3_600
MIDNIGHT_S = 1_717_200_000  # 2024-06-01T00:00:00Z


def settings(**changes: object) -> TableSettings:
    """Return a table of funding rates that are known ten minutes after their time, for eight hours."""
    content = {"file": "funding.csv", "time": "time", "columns": ("rate",)}
    return TableSettings.model_validate(
        {**content, "available_after_s": 600, "max_age_s": 8 * HOUR_S, **changes}
    )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("V8_TABLES", str(tmp_path))
    return tmp_path


def test_a_row_counts_from_when_it_was_known_until_it_is_too_old() -> None:
    frame = pd.DataFrame({"time": [MIDNIGHT_S, MIDNIGHT_S + HOUR_S], "rate": [1.0, 2.0]})
    table = user_table(frame, settings(), "here")
    closes = {
        MIDNIGHT_S: -1,  # its time, but nobody knew it
        MIDNIGHT_S + 599: -1,
        MIDNIGHT_S + 600: 0,
        MIDNIGHT_S + HOUR_S: 0,  # the second has its time, but nobody knew it
        MIDNIGHT_S + HOUR_S + 600: 1,
        MIDNIGHT_S + 9 * HOUR_S: 1,
        MIDNIGHT_S + 9 * HOUR_S + 1: -1,  # eight hours and a second after its time
    }
    assert table.rows_known(np.array([*closes])).tolist() == [*closes.values()]


@pytest.mark.parametrize(
    "text",
    [
        "time,other,rate\n2024-06-01T00:00:00Z,x,1e-4\n2024-06-01T08:00:00+00:00,,-2\n",
        "rate;time\r\n1e-4;1717200000\r\n-2;1717228800\r\n",
        "\n\ntime|rate\n1717200000|1e-4\n1717228800|-2\n",
        '\ufefftime,rate\n"2024-06-01 02:00:00+0200","1e-4"\n1717228800000,-2\n',
    ],
)
def test_times_and_separators_of_every_usual_kind_are_read(folder: Path, text: str) -> None:
    (folder / "funding.csv").write_text(text, encoding="utf-8")
    table = read_user_table(settings())
    assert table.time_us.tolist() == [MIDNIGHT_S * 10**6, (MIDNIGHT_S + 8 * HOUR_S) * 10**6]
    assert table.columns["rate"].tolist() == [1e-4, -2.0]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("time,rates\n1717200000,1\n", "funding.csv: .*got time, rates"),
        ("time,rate,rate\n1717200000,1,2\n", "funding.csv: .*got time, rate, rate"),
        ("", "funding.csv: .*the columns time.*got none"),
        ("time,rate\n", "funding.csv: .*least one row.*got none"),
        ("time,rate\n2024-06-01T00:00:00,1\n", "funding.csv: .*got '2024-06-01T00:00:00' in row 1"),
        ("time,rate\n2024-06-01,1\n", "funding.csv: .*got '2024-06-01' in row 1"),
        ("time,rate\n,1\n", "funding.csv: .*got '' in row 1"),
        ("time,rate\n12,1\n", "funding.csv: .*got '12' in row 1"),
        ("time,rate\n1717200000,1\n1717200000,2\n", "funding.csv: .*times ascend.*got '1717200000' in row 2"),
        ("time,rate\n1717203600,1\n1717200000,2\n", "funding.csv: .*row to row.*got '1717200000' in row 2"),
        ("time,rate\n1717200000,1\n1717203600,\n", "column rate: .*got '' in row 2"),
        ("time,rate\n1717200000,nan\n", "column rate: .*has a number"),
        ("time,rate\n1717200000,1e300\n", "column rate: .*has a number"),
        ("time,rate\n1717200000,1,2,3\n", "funding.csv: .*got 4 values in line 2, and 2 columns"),
    ],
)
def test_what_could_mean_something_else_is_refused(folder: Path, text: str, why: str) -> None:
    (folder / "funding.csv").write_text(text)
    with pytest.raises(DataError, match=why):
        read_user_table(settings())


@pytest.mark.parametrize(
    "rows",
    [
        # Read leniently, the second value counts from the first time on, eight hours early.
        '1717200000,"x,1\n1717228800,y",2\n',
        '1717200000,x"",1\n1717228800,"y,2\n1717257600,z",3\n',
        '1717200000,"x"y,1\n',
        '1717200000,"x,1\r1717228800,y",2\r',
    ],
)
def test_a_quote_never_reaches_into_another_row(folder: Path, rows: str) -> None:
    (folder / "funding.csv").write_text(f"time,note,rate\n{rows}", newline="")
    with pytest.raises(DataError, match=r"funding.csv: .* in line [23]\. "):
        read_user_table(settings())


def test_a_table_that_is_not_there_names_the_flag(folder: Path) -> None:
    with pytest.raises(DataError, match=r"funding.csv: .*got No such file.*--tables"):
        read_user_table(settings())


def test_a_table_written_as_csv_reads_back_as_it_was(folder: Path) -> None:
    times = [MIDNIGHT_S, MIDNIGHT_S + 0.25, MIDNIGHT_S + 60]
    frame = pd.DataFrame({"time": times, "rate": [0.1, 1 / 3, -2e-17]})
    table = user_table(frame, settings(), "a test")
    (folder / "funding.csv").write_text(table.to_csv())
    again = read_user_table(settings())
    assert again.time_us.tolist() == table.time_us.tolist() == [round(time * 1e6) for time in times]
    assert again.columns["rate"].tolist() == frame["rate"].tolist()


def test_a_frame_has_its_times_in_a_column_or_in_the_index() -> None:
    times = pd.to_datetime([MIDNIGHT_S], unit="s", utc=True)
    frame = pd.DataFrame({"rate": [3]}, index=times)
    assert user_table(frame, settings(), "here").time_us.tolist() == [MIDNIGHT_S * 10**6]
    assert user_table({"time": times, "rate": [3]}, settings(), "here").columns["rate"].tolist() == [3.0]
    with pytest.raises(DataError, match=r"here: .*got Timestamp\('2024-06-01 00:00:00'\) in row 1"):
        user_table(frame.tz_localize(None), settings(), "here")


def test_a_folder_that_one_call_names_is_not_the_next_one_s(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """At 56f927dc `--tables` was written into the environment, where the next call found it."""
    other = tmp_path_factory.mktemp("other")
    for place, rate in ((folder, 1), (other, 2)):
        (place / "funding.csv").write_text(f"time,rate\n{MIDNIGHT_S},{rate}\n")
    options = RunOptions(profile="range_paths", source="demo", tables=other, runs=folder / "runs")
    assert PreparedRun.from_options(options, "v8 run").plan.tables == other
    rates = []
    for tables in (other, None):
        (table,) = Companions((), (settings(),), folder=tables).tables
        rates += table.columns["rate"].tolist()
    assert rates == [2.0, 1.0]
