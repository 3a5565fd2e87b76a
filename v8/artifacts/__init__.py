"""What a run leaves on disk: run folders, series artefacts, and the one loader that reads them."""
