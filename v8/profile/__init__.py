"""What is trained: profile, tasks, columns, families, indicators and formulas by name."""
