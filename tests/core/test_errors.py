"""Every error is a MinariPipeError and what real Minari raises for the same fault."""

from __future__ import annotations

import pytest

from minari_pipe import errors

BUILTINS = {
    "DatasetNotFoundError": (FileNotFoundError, ValueError),
    "DatasetExistsError": (FileExistsError, ValueError),
    "CorruptDatasetError": (OSError,),
    "LinkError": (errors.CorruptDatasetError, OSError),
    "UnsupportedVersionError": (ValueError,),
    "UnknownFormatError": (LookupError, ValueError),
    "RemoteError": (OSError,),
    "InvalidDatasetIdError": (ValueError,),
    "InvalidEpisodeError": (ValueError, AssertionError),
    "InvalidMetadataError": (ValueError, AssertionError),
    "UnsupportedSpaceError": (TypeError, NotImplementedError),
    "MissingReferenceScoreError": (LookupError, ValueError),
    "MissingDependencyError": (ModuleNotFoundError,),
    "EnvironmentNotFoundError": (LookupError,),
    "TrustError": (PermissionError,),
    "ConfigError": (ValueError,),
    "ReportedError": (),
}


@pytest.mark.parametrize("name", BUILTINS)
def test_is_caught_by_its_builtins_and_says_its_message(name: str) -> None:
    error = getattr(errors, name)("what is wrong")
    assert isinstance(error, errors.MinariPipeError)
    assert all(isinstance(error, builtin) for builtin in BUILTINS[name])
    assert str(error) == "what is wrong"


@pytest.mark.parametrize("name", BUILTINS)
def test_no_text_in_an_error_is_obeyed_by_a_terminal(name: str) -> None:
    """A traceback shows it as it is, and names of files come from strangers."""
    assert str(getattr(errors, name)("data/\x1b]0;x\x07 is\nmissing")) == (
        r"data/\x1b]0;x\x07 is" "\nmissing"
    )


def test_the_table_above_has_every_error() -> None:
    defined = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.MinariPipeError)
    }
    assert defined == {*BUILTINS, "MinariPipeError"}
