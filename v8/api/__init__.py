"""The door from Python: what `import v8` offers beside `load`, for notebooks and scripts."""
