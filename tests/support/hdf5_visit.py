"""Print what h5py finds in a file, so that two versions of it can be compared; needs no more.

Run as ``python hdf5_visit.py FILE``, with ``change`` after it to change every object first.
"""

from __future__ import annotations

import hashlib
import json
import sys
from typing import Any

import h5py
import numpy as np


def change(path: str) -> None:
    """Let every dataset and every group grow, and replace attributes."""
    with h5py.File(path, "r+") as file:
        nodes: list[Any] = []
        file.visititems(lambda _, node: nodes.append(node))
        for node in nodes:
            for name in list(node.attrs):
                value = node.attrs[name]
                del node.attrs[name]
                node.attrs[name] = value
            node.attrs["new"] = "text"
            if isinstance(node, h5py.Group):
                node.create_group("of a newer member").attrs["x"] = np.arange(3)
                for number in range(12):
                    node[f"member {number}"] = number
                del node["member 3"]
            elif node.shape:
                rows = len(node)
                # in pieces: the tree of chunks gets several levels
                for more in range(1, 2 + 5 * rows):
                    node.resize(rows + more, axis=0)
                    node[-1] = node[0]
                node.resize(rows + 2, axis=0)
        file.create_dataset("many chunks", data=np.arange(700.0), chunks=(1,), maxshape=(None,))
        for number in range(20):
            file.create_group(f"episode_new_{number}")


def digest(path: str) -> dict[str, Any]:
    """Return type, shape and a hash of everything."""
    found: dict[str, Any] = {}

    def look(name: str, node: Any) -> None:
        attributes = {key: _told(value) for key, value in node.attrs.items()}
        values = None
        if isinstance(node, h5py.Dataset):
            values = [*_told(node[()]), node.maxshape, node.chunks]
        found[name] = [type(node).__name__, attributes, values]

    with h5py.File(path, "r") as file:
        file.visititems(look)
        found["/"] = list(file)
    return found


def _told(value: Any) -> list[Any]:
    array = np.asarray(value)
    content = repr(array.tolist()).encode() if array.dtype.kind == "O" else array.tobytes()
    return [array.dtype.str, array.shape, hashlib.sha256(content).hexdigest()]


if __name__ == "__main__":
    if sys.argv[2:] == ["change"]:
        change(sys.argv[1])
    print(json.dumps(digest(sys.argv[1])))
