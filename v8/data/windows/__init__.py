"""From a FeatureTable to windows: splits, scaling, targets, indices of batches."""
