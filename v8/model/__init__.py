"""What forecasts: networks, training, baselines; and evaluation. TensorFlow is imported late."""
