"""The Python API, for notebooks and scripts: what `import v8` offers."""
