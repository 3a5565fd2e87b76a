"""The ledger: every forecast issued about the future, scored when the truth comes."""
