"""The shipped profiles that are trained; those of a formula are fitted."""

from __future__ import annotations

from v8.profile.profile import load_profile, profile_names


def network_profiles() -> list[str]:
    """Name the shipped profiles that have a network."""
    return [name for name in profile_names() if not load_profile(name).family.is_formula]
