"""Fuzzing: randomly changed inputs, and what v8 must do with each; see `python tests/fuzzing`."""
