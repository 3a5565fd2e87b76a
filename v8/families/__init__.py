"""The network families: the settings, the layers and the cost of each."""

from typing import Final

from v8.families import autoregressive, direct
from v8.families.family import Family
from v8.registry import Registry

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
