"""What a run prints stays short, whatever user code warns of."""

from __future__ import annotations

import warnings

from minari_pipe.core.messages import each_warning_once


def test_warnings_that_differ_in_numbers_alone_do_not_fill_a_log() -> None:
    said: list[str] = []
    with each_warning_once(said.append):
        warnings.simplefilter("always")
        for step in range(1000):
            warnings.warn(f"tick {step} at {step / 7}", stacklevel=1)
            warnings.warn("the limit is 3", stacklevel=1)
    assert said[:2] == ["tick 0 at 0.0", "the limit is 3"]
    assert len(said) == 6
    assert said[-1].startswith("tick 4 at") and said[-1].endswith("(no more like this are shown)")
