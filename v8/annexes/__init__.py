"""What adds to the core and may be absent: each folder with an `annex.yaml`."""
