"""The base of all that users write into profiles: strict, frozen, and without keys that nobody knows."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """A section of a profile; a sentence under each field tells meaning, unit and special values."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
