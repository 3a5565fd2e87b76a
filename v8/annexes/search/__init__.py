"""Search: tries settings of a profile by back-tests, and evaluates the winner on folds that no trial saw."""
