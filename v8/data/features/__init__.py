"""The table of feature columns, and the store that keeps them."""
