"""Write and change the front matter of a card on the Hub: YAML that the Hub's pages are made of.

Only a new card gets all of it. In a card that exists, an upload

- adds an entry to ``configs`` for each dataset that has a table of episodes, which the Hub shows,
  and removes the ``viewer: false`` with which earlier versions turned the viewer off;
- rewrites the lines that end with ``# minari_pipe``, which depend on all datasets of the card.

Everything else is the user's. Front matter that cannot be changed for certain stays as it is: after
each change it is parsed again, and must say what it said before, but for the change.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import yaml

from minari_pipe.core.env_specs import environment_id
from minari_pipe.datasets.cards.words import license_id, line_of

#: Ending of the lines that uploads rewrite.
OWN = "  # minari_pipe"
#: Ids of licenses that the Hub knows: https://huggingface.co/docs/hub/repositories-licenses
LICENSES = {
    "afl-3.0", "agpl-3.0", "apache-2.0", "artistic-2.0", "bigcode-openrail-m",
    "bigscience-bloom-rail-1.0", "bigscience-openrail-m", "bsd", "bsd-2-clause", "bsd-3-clause",
    "bsd-3-clause-clear", "bsl-1.0", "c-uda", "cc", "cc-by-2.0", "cc-by-2.5", "cc-by-3.0",
    "cc-by-4.0", "cc-by-nc-2.0", "cc-by-nc-3.0", "cc-by-nc-4.0", "cc-by-nc-nd-3.0",
    "cc-by-nc-nd-4.0", "cc-by-nc-sa-2.0", "cc-by-nc-sa-3.0", "cc-by-nc-sa-4.0", "cc-by-nd-4.0",
    "cc-by-sa-3.0", "cc-by-sa-4.0", "cc0-1.0", "cdla-permissive-1.0", "cdla-permissive-2.0",
    "cdla-sharing-1.0", "creativeml-openrail-m", "deepfloyd-if-license", "ecl-2.0", "epl-1.0",
    "etalab-2.0", "eupl-1.1", "gemma", "gfdl", "gpl", "gpl-2.0", "gpl-3.0", "isc", "lgpl",
    "lgpl-2.1", "lgpl-3.0", "lgpl-lr", "llama2", "lppl-1.3c", "mit", "mpl-2.0", "ms-pl", "ncsa",
    "odbl", "odc-by", "ofl-1.1", "openrail", "openrail++", "osl-3.0", "pddl", "postgresql",
    "unlicense", "wtfpl", "zlib",
}  # fmt: skip
#: Environments of Gymnasium-Robotics with an arm or a hand, by the beginning of their ids.
_ROBOTS = ("Adroit", "Fetch", "FrankaKitchen", "HandManipulate", "HandReach")
#: Powers of ten between the Hub's categories of size, with the names that these use.
_ENDS = ["1K", "10K", "100K", "1M", "10M", "100M", "1B", "10B", "100B", "1T"]
#: Length in characters of front matter that is changed, and the number of its opening brackets: the
#: time that PyYAML takes grows with the square of their depth, to 40 s for 5000.
_LONGEST, _MOST_BRACKETS = 30_000, 500

_FRONT_MATTER = re.compile(r"\A---\r?\n(.*?)^---[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)
#: Characters at which YAML ends a line, and this module does not.
_OTHER_LINE_ENDS = re.compile("[\x85\u2028\u2029]|\r(?!\n)")


def new_front_matter(repo: str, metadata: Iterable[Mapping[str, Any]]) -> str:
    """Return the front matter of a new card.

    Args:
        repo: name of the repository, without the organization.
        metadata: metadata of its datasets.
    """
    environments = [environment_id(each.get("env_spec")) or "" for each in metadata]
    tasks = ["reinforcement-learning"]
    if any(name.rpartition("/")[2].startswith(_ROBOTS) for name in environments):
        tasks.append("robotics")
    lines = (
        f"pretty_name: {json.dumps(repo, ensure_ascii=False)}",
        "task_categories:",
        *(f"- {task}" for task in tasks),
        f"size_categories: [{size_category(0)}]{OWN}",
        "tags:\n- minari\n- gymnasium\n- offline-reinforcement-learning",
        # without a table, the viewer shows only an error
        "viewer: false",
    )
    return "---\n{}\n---\n".format("\n".join(lines))


def size_category(n: int) -> str:
    """Return the Hub's category for a number of episodes.

    Example:
        >>> size_category(999), size_category(1000), size_category(10**12)
        ('n<1K', '1K<n<10K', 'n>1T')
    """
    place = sum(n >= 10 ** (power + 3) for power in range(len(_ENDS)))
    if place == 0:
        return f"n<{_ENDS[0]}"
    return f"n>{_ENDS[-1]}" if place == len(_ENDS) else f"{_ENDS[place - 1]}<n<{_ENDS[place]}"


def license_lines(metadata: Mapping[str, Any]) -> list[str]:
    """Return the lines about a dataset's license; none if it states none.

    Example:
        >>> license_lines({"license": "CC BY 4.0"})
        ['license: cc-by-4.0  # minari_pipe']
        >>> license_lines({"license": "My own: 1"})
        ['license: other  # minari_pipe', 'license_name: "my-own-1"  # minari_pipe']
    """
    if (name := license_id(metadata.get("license"))) in LICENSES - {"unknown"}:
        return [f"license: {name}{OWN}"]
    name = re.sub(r"[^a-z0-9.+]+", "-", line_of(metadata.get("license"), 100).lower()).strip("-")
    if not name or name == "unknown":
        return []
    return [f"license: other{OWN}", f'license_name: "{name}"{OWN}']


def with_facts(
    card: str, metadata: Iterable[Mapping[str, Any]], n_episodes: int, *, first: bool
) -> str:
    """Return a card whose own lines about license and size are those of its datasets.

    The license is stated as long as all datasets have it; a user's own line about it stays.

    Args:
        card: text of the card.
        metadata: metadata of the datasets that this upload adds.
        n_episodes: number of episodes of all datasets.
        first: whether the card lists no others.
    """
    found = _FRONT_MATTER.match(card)
    if found is None:
        return card
    newline = "\r" if "\r\n" in found[0] else ""
    lines = found[1].split("\n")
    own = [line for line in lines if _is_own(line, "license")]
    wanted = {tuple(license_lines(each)) for each in metadata}
    if own and wanted - {tuple(line.removesuffix("\r") for line in own)}:
        lines = [line for line in lines if line not in own]
    sizes = [place for place, line in enumerate(lines) if _is_own(line, "size_categories")]
    if sizes:
        place = sizes[0]
        lines[place] = f"size_categories: [{size_category(n_episodes)}]{OWN}{newline}"
        states_it = any(line.startswith("license") for line in lines)
        if first and not own and not states_it and len(wanted) == 1:
            lines[place:place] = [f"{line}{newline}" for line in wanted.pop()]
    return card[: found.start(1)] + "\n".join(lines) + card[found.end(1) :]


def _is_own(line: str, key: str) -> bool:
    return line.startswith(key) and line.rstrip().endswith(OWN.strip())


def with_tables(card: str, tables: Mapping[str, str]) -> str:
    """Return a card whose ``configs`` name these tables too; the same if it cannot be changed.

    Args:
        card: text of the card.
        tables: paths of the tables in the repository, by the name of their config.
    """
    found = _FRONT_MATTER.match(card)
    if not tables or found is None:
        return card
    text = found[1]
    n_brackets = text.count("[") + text.count("{")
    if len(text) > _LONGEST or n_brackets > _MOST_BRACKETS or _OTHER_LINE_ENDS.search(text):
        return card
    try:
        changed = _with_configs(text, tables)
    except (yaml.YAMLError, ValueError, TypeError, RecursionError):
        return card
    return card[: found.start(1)] + changed + card[found.end(1) :]


def _with_configs(text: str, tables: Mapping[str, str]) -> str:
    """Return front matter with configs of these tables.

    Raises:
        ValueError: it cannot be changed for certain.
        yaml.YAMLError: it is not YAML.
    """
    root = _plain(text)
    before = yaml.safe_load(text)
    if not isinstance(root, yaml.MappingNode) or root.flow_style or not isinstance(before, dict):
        raise ValueError("expected a mapping")
    nodes = {key.value: (key, value) for key, value in root.value}
    configs = before.get("configs", [])
    if not isinstance(configs, list):
        raise ValueError("configs must be a list")
    names = {each.get("config_name") for each in configs if isinstance(each, dict)}
    missing = {name: path for name, path in tables.items() if name not in names}
    if not missing:
        return text
    lines = text.split("\n")
    newline = "\r" if "\r\n" in text else ""
    margin = " " * root.start_mark.column
    # Once the card has a table, it is the user who turns the viewer off.
    is_off = before.get("viewer") is False and len(missing) == len(tables)
    dash = margin
    new: list[str] = []
    if "configs" in nodes:
        sequence = nodes["configs"][1]
        if not isinstance(sequence, yaml.SequenceNode) or sequence.flow_style or not configs:
            raise ValueError("configs must be a list in lines of its own")
        dash = " " * sequence.start_mark.column
        place = _line_after(sequence)
    else:
        new.append(f"{margin}configs:")
        place = nodes["viewer"][0].start_mark.line if is_off else len(lines) - 1
    for name, path in missing.items():
        new += [
            f"{dash}- config_name: {_quoted(name)}",
            f"{dash}  data_files:",
            f"{dash}  - split: train",
            f"{dash}    path: {_quoted(path)}",
        ]
    changes = [(place, place, [f"{line}{newline}" for line in new])]
    if is_off:
        key, value = nodes["viewer"]
        start, end = key.start_mark, value.end_mark
        if start.line != end.line:
            raise ValueError("viewer must be in one line")
        comment = lines[start.line][end.column :].strip()
        kept = [f"{margin}{comment}{newline}"] if comment else []
        changes.append((start.line, start.line + 1, kept))
    for first, last, own in sorted(changes, reverse=True):
        lines[first:last] = own
    changed = "\n".join(lines)
    wanted = {key: value for key, value in before.items() if key != "viewer" or not is_off}
    if yaml.safe_load(changed) != {**wanted, "configs": [*configs, *_configs(missing)]}:
        raise ValueError("it does not say what it should")
    return changed


def _configs(tables: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    for name, path in tables.items():
        yield {"config_name": name, "data_files": [{"split": "train", "path": path}]}


def _plain(text: str) -> yaml.Node | None:
    """Parse YAML without anchors, tags and repeated keys, which readers understand differently.

    Raises:
        ValueError: names what it has.
    """
    for event in yaml.parse(text, yaml.SafeLoader):
        if getattr(event, "anchor", None) or getattr(event, "tag", None):
            raise ValueError("it has an anchor or a tag")
    root = yaml.compose(text, yaml.SafeLoader)
    nodes = [root]
    while nodes:
        node = nodes.pop()
        if isinstance(node, yaml.MappingNode):
            keys = [key.value for key, _ in node.value]
            if not all(isinstance(key, str) for key in keys) or len({*keys}) < len(keys):
                raise ValueError("it has a key twice, or one that is no text")
            nodes += [value for _, value in node.value]
        elif isinstance(node, yaml.SequenceNode):
            nodes += node.value
    return root


def _line_after(node: yaml.Node) -> int:
    """Return the number of the line after a block, without the comments that follow it."""
    while isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        node = last[1] if isinstance(last, tuple) else last
    end = node.end_mark
    return end.line + (1 if end.column else 0)  # a block of text ends where the next line begins


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
