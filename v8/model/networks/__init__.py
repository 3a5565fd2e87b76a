"""Networks in stock Keras layers, and the model users load."""
