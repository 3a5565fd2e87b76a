"""Reports: pages, pictures and cards of results, drawn from tables and charts."""

import logging

_CACHE_FOLDER_NOTES = ("mkdir -p failed for path", "Matplotlib created a temporary cache directory")


def _is_no_cache_folder_note(record: logging.LogRecord) -> bool:
    """Drop what Matplotlib says of a home folder that cannot be written.

    It then keeps its list of fonts in a temporary folder, which costs a second and changes no picture.
    """
    return not record.getMessage().startswith(_CACHE_FOLDER_NOTES)


# Here, because the note is written while Matplotlib is imported by `v8.publish.report.pictures`.
logging.getLogger("matplotlib").addFilter(_is_no_cache_folder_note)
