"""What others see of a run: the Hub, the report, the model card."""
