"""Requirements that no version can meet together are found, and only those."""

from __future__ import annotations

import re

import pytest

from minari_pipe.core.requirements import exclusions, warn_unless_met


@pytest.mark.parametrize(
    ("left", "right", "named"),
    [
        ("mujoco>=3", "mujoco<3", "mujoco>=3 and mujoco<3"),
        ("Mu_joco==3.1.0", "mu-joco==3.1.1", "Mu_joco==3.1.0 and mu-joco==3.1.1"),
        ("mujoco==3.*", "mujoco~=2.4", "mujoco==3.* and mujoco~=2.4"),
        ("mujoco>=3", "mujoco<4", None),
        ("mujoco>1.5,<2", "mujoco>1,!=1.6", None),
        ("mujoco<3", "mujoco<2", None),
        ("mujoco>3rc1", "mujoco>=2.0.post1", None),
        ("mujoco===anything", "mujoco===anything", None),
        ("mujoco>=3", "not a requirement", None),
        ("mujoco>=3", "mujoco<3; python_version < '3'", None),
        ("mujoco", "mujoco==2", None),
    ],
)
def test_exclusions_are_named_by_package(left, right, named) -> None:
    found = list(exclusions(["numpy>=1", left, "gymnasium", right]))
    assert found == ([named] if named else [])


@pytest.mark.parametrize(
    ("requirement", "advice"),
    [
        ("no-such[b,a]>=1,<2", "`pip install 'no-such[a,b]<2,>=1'`"),
        ("no-such @ https://example.org/$(touch).whl", "names an address, 'https://"),
    ],
)
def test_advice_to_install_runs_nothing_that_a_requirement_holds(requirement, advice) -> None:
    with pytest.warns(UserWarning, match=f"no-such is not installed.*{re.escape(advice)}"):
        warn_unless_met(requirement)
