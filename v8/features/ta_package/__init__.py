"""The indicators of the package `ta` as features: read from it, examined, computed alike everywhere."""
