"""A fleet of crypto forecasters, trained at once, judged honestly, published whole."""

__version__ = "0.1.0"
