"""Computes the exact shares of a mixture's parents."""

from __future__ import annotations

from fractions import Fraction

from minari_pipe.errors import ConfigError

_TOLERANCE = Fraction(1, 10**6)  # accepts three times 0.333333


def exact_shares(parents: dict[str, float]) -> dict[str, Fraction]:
    """Return the shares of the steps as fractions of the written decimals, scaled to sum to 1.

    Raises:
        ConfigError: there are no parents, a share is not positive, or they do not sum to 1.

    Example:
        >>> exact_shares({"medium": 0.9, "expert": 0.1})
        {'medium': Fraction(9, 10), 'expert': Fraction(1, 10)}
    """
    if not isinstance(parents, dict) or not parents:
        raise ConfigError(
            f"policy.parents is {parents!r}; expected datasets with their shares of the steps, "
            f"e.g. policy.parents={{cartpole_medium: 0.5, cartpole_expert: 0.5}}"
        )
    for name, share in parents.items():
        if not isinstance(share, int | float) or not 0 < share <= 1:  # also for NaN
            raise ConfigError(
                f"policy.parents.{name} is {share}; expected a share of the steps, above 0 and at "
                f"most 1"
            )
    exact = {name: Fraction(repr(float(share))) for name, share in parents.items()}
    total = sum(exact.values(), Fraction(0))
    if abs(total - 1) > _TOLERANCE:
        listed = " + ".join(f"{name} {share}" for name, share in parents.items())
        raise ConfigError(f"the shares of policy.parents sum to {float(total)}, not 1: {listed}")
    return {name: share / total for name, share in exact.items()}
