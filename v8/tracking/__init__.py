"""Trackers of experiments: event files for TensorBoard, and runs at Weights & Biases."""
