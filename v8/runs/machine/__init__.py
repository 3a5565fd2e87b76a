"""What this machine can do, measured once and kept; our processes, started quietly and stopped cleanly."""
