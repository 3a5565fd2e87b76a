"""The network families: one file each with settings, layers and cost."""

from typing import Final

from v8.families.bilstm_seq2seq import BILSTM_SEQ2SEQ
from v8.families.dense_newest import DENSE_NEWEST
from v8.families.family import Family
from v8.families.gru_attention import GRU_ATTENTION
from v8.families.lstm_attention import LSTM_ATTENTION
from v8.families.lstm_close import LSTM_CLOSE
from v8.families.lstm_dense import LSTM_DENSE
from v8.families.range_paths import RANGE_PATHS_FAMILY
from v8.families.transformer import TRANSFORMER
from v8.registry import Registry

FAMILIES: Final[Registry[Family]] = Registry(
    "network family",
    [
        BILSTM_SEQ2SEQ,
        LSTM_DENSE,
        DENSE_NEWEST,
        TRANSFORMER,
        GRU_ATTENTION,
        LSTM_ATTENTION,
        LSTM_CLOSE,
        RANGE_PATHS_FAMILY,
    ],
)
