"""A judgement as a table that groups and pivots."""

from typing import Final

import pandas as pd

from v8.formulas.baselines import called
from v8.losses.judgement import Judgement
from v8.losses.quantile_judgement import QuantileJudgement

_ERRORS: Final = ("mae_return", "rmse_return", "mae_price", "rmse_price")


def sureness(judged: QuantileJudgement) -> pd.DataFrame:
    """Return how good quantiles were on the test span, a column a task.

    Rows: the CRPS over that of each baseline with quantiles, and the share of truths in each interval.
    """
    columns = {}
    for task, told in judged.summary().items():
        crps = {f"CRPS / {called(name)}": multiple for name, multiple in told["crps_multiples"].items()}
        columns[task] = crps | {f"within {name}": share for name, share in told["coverage"].items()}
    return pd.DataFrame(columns)


def tidy(judgement: Judgement) -> pd.DataFrame:
    """Return the errors of a judgement, one row a forecaster, task, column and step.

    Returns:
        Columns `forecaster` ("model" or a baseline's name), `task`, `column`, `step` (bars ahead, from 1) and
        errors: `mae_return`, `rmse_return` as a share of the last close (volatility: as it is), `mae_price`,
        `rmse_price` in the unit of the column.
    """
    rows = [
        {
            **{"forecaster": name, "task": task, "column": column, "step": step + 1},
            **{kind: getattr(errors, kind).cells[step][at] for kind in _ERRORS},
        }
        for task, judged in judgement.tasks.items()
        for name, errors in judged.errors.items()
        for step in range(judgement.horizon_bars)
        for at, column in enumerate(judged.columns)
    ]
    return pd.DataFrame(rows)
