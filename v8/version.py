"""The version of this package, where every floor can read it."""

VERSION = "0.1.0"
