"""The Hugging Face Hub: what lies in a repository, publishing a run in one commit, pulling one model."""

from v8.hub.endpoint import hub_endpoint

# The Hub's client reads this address while it is imported, and a damaged one would break the import.
hub_endpoint()
