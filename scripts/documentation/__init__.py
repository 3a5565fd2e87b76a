"""The documentation site: pages of `docs/`, a reference generated from the code, and a check of all links."""
