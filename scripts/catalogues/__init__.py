"""The gettext catalogues of v8: sentences are extracted from the code, translations checked and compiled."""
