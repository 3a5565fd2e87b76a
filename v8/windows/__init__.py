"""From a FeatureTable to windows: splits, scaling, targets, pipelines."""
