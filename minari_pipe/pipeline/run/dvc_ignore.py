"""Check the files by which DVC ignores others: ``.dvcignore``, and those of git."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minari_pipe.core.messages import is_encodable
from minari_pipe.errors import ConfigError
from minari_pipe.pipeline.workspace_links import check_place

if TYPE_CHECKING:
    from dvc.output import Output
    from dvc.stage import Stage

#: Each asterisk of a pattern multiplies the time to match it.
_MOST_ASTERISKS = 4


def refuse_hidden(stages: Iterable[Stage]) -> None:
    """Refuse dependencies and outputs with files that DVC does not see: nor would it see edits.

    DVC also ignores other repositories. It may ignore those of git, which hold no data.

    Raises:
        ConfigError: names a file that DVC ignores or cannot name, or an empty folder to read.
    """
    for stage in stages:
        for item in (*stage.deps, *stage.outs):
            if item.protocol == "local" and os.path.isdir(item.fs_path):
                _refuse_hidden(item, is_read=item in stage.deps)


def _refuse_hidden(item: Output, *, is_read: bool) -> None:
    """Do as :func:`refuse_hidden` for one folder, which a stage reads or writes."""
    try:
        seen = set(item.dvcignore.find(item.fs, item.fs_path))
    except (UnicodeDecodeError, IsADirectoryError) as error:
        raise ConfigError(f"a .dvcignore in {item.def_path} is no UTF-8 text") from error
    for folder, folders, names in os.walk(item.fs_path):
        shown = os.path.relpath(folder, item.repo.root_dir)
        if is_read and not (folders or names):
            raise ConfigError(
                f"{shown} is an empty folder, which DVC does not see; remove it, or put a file "
                f"into it"
            )
        folders[:] = [name for name in folders if name != ".git"]
        for name in names:
            file = f"{shown}/{name}"
            if not is_encodable(file):
                raise ConfigError(f"{file!r}: DVC reads no name that is not UTF-8; rename it")
            if name != ".git" and os.path.join(folder, name) not in seen:
                raise ConfigError(
                    f"{file} is hidden from DVC by a .dvcignore file or by a folder .dvc or "
                    f".hg, so changes to it would go unnoticed; remove what hides it, or move "
                    f"it out of {item.def_path}"
                )


@functools.cache
def check_ignore_files() -> None:
    """Patch DVC so that no ``.dvcignore`` is a link or a pipe, and no pattern takes hours.

    That holds for git's ignore files, too, except for the one of the user's own settings of git.
    """
    from dulwich.config import StackedConfig
    from dulwich.ignore import IgnoreFilter, default_user_ignore_filter_path
    from dvc.ignore import DvcIgnorePatterns

    read, append = DvcIgnorePatterns.from_file, IgnoreFilter.append_pattern

    def from_file(path: str, *how: Any) -> Any:
        check_place(Path(path), Path(path).parent)
        found = read(path, *how)
        for pattern in found.pattern_list:
            if fault := _fault(pattern.patterns):
                raise ConfigError(f"{path}: {fault}")
        return found

    def append_pattern(self: IgnoreFilter, pattern: bytes) -> None:
        if fault := _fault(os.fsdecode(pattern)):
            own = default_user_ignore_filter_path(StackedConfig.default())
            if self._path != os.path.expanduser(own):
                raise ConfigError(f"{self._path}: {fault}")
        append(self, pattern)

    DvcIgnorePatterns.from_file = from_file
    # DVC has no option for another filter: hence a patch, which type checkers refuse.
    IgnoreFilter.append_pattern = append_pattern  # type: ignore[method-assign]


def _fault(pattern: str) -> str | None:
    """Return why a pattern may take hours to match, or None."""
    if len(re.findall(r"\*+", pattern)) <= _MOST_ASTERISKS:
        return None
    return (
        f"the pattern {pattern!r} has more than four asterisks, each of which multiplies the time "
        f"to match it; name fewer parts"
    )
