"""The network families: the settings, the layers and the cost of each."""

from typing import Final

from v8.base.registry import Registry
from v8.profile.families import autoregressive, direct
from v8.profile.families.family import Family

FAMILIES: Final[Registry[Family]] = Registry(
    "network family",
    [
        direct.BILSTM_SEQ2SEQ,
        direct.LSTM_DENSE,
        direct.DENSE_NEWEST,
        autoregressive.TRANSFORMER,
        autoregressive.GRU_ATTENTION,
        autoregressive.LSTM_ATTENTION,
        direct.LSTM_CLOSE,
        direct.RANGE_PATHS,
    ],
)
