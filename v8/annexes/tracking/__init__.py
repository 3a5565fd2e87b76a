"""Trackers of experiments: event files for TensorBoard, runs at Weights & Biases and in MLflow."""
