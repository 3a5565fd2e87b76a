"""The site: pages of `docs/`, a reference written from the code, links that are looked at."""
