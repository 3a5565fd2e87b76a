"""The Hugging Face Hub: what lies in a repository, publishing a run in one commit, pulling one model."""
