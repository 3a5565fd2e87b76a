"""Experiment trackers: one seam, one file each, and nothing is sent anywhere unless asked."""
