"""How profiles are named where they are compared: a profile that is a formula is marked as one."""

from collections.abc import Iterable, Mapping

from v8.base.language import say
from v8.profile.profile import Profile


def formulas_of(profiles: Iterable[Profile]) -> dict[str, str]:
    """Return the family of each profile that is a formula, by the name of the profile."""
    return {profile.name: profile.network.family for profile in profiles if profile.family.is_formula}


def marked(profile: str, formulas: Mapping[str, str]) -> str:
    """Return the name of a profile, marked if it is one of the formulas.

    >>> marked("range_paths", {"range_paths": "range_paths"}), marked("frontier", {})
    ('range_paths (formula)', 'frontier')
    """
    return say("{name} (formula)", name=profile) if profile in formulas else profile
