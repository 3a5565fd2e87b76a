"""`features.py` of a run or repository, which computes the inputs of its models without v8.

`v8.forecaster.standalone` writes its text.
"""

from v8.forecaster.metadata import Metadata
from v8.forecaster.standalone import StandaloneSpec, features_code, obstacle


def features_file(metadata: Metadata) -> str:
    """Return the text of `features.py` for a model and all others of its profile.

    It is empty where numpy and pandas alone cannot compute the features: of the package ta, of plug-ins.
    """
    if obstacle(metadata.names):
        return ""
    spec = StandaloneSpec(
        profile=metadata.profile.name,
        features=metadata.names,
        lookback_bars=metadata.lookback_bars,
        horizon_bars=metadata.horizon_bars,
        tasks={name: task.columns for name, task in metadata.tasks.items()},
        quantiles=metadata.profile.quantiles,
    )
    return features_code(spec)
