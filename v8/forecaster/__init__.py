"""The files of a run: run folders, artefacts of series, and the loader of saved models."""
