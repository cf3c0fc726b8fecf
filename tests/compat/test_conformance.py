"""One table: each public name, its documented parameters and defaults, compared with the peer's.

A user changes ``import minari`` to ``import minari_pipe as minari``. So parameters have the same
names, order and defaults; ours may have further ones at the end that are given by keyword only.
"""

from __future__ import annotations

import importlib
import inspect
from importlib.util import find_spec
from typing import Any

import minari
import pytest

import minari_pipe

#: where Minari 0.5.4 has a name
PEER = {
    "DataCollector": "minari",
    "EpisodeBuffer": "minari.data_collector",
    "EpisodeData": "minari",
    "EpisodeMetadataCallback": "minari",
    "METADATA_FILE_NAME": "minari.dataset.minari_storage",
    "MinariDataset": "minari",
    "MinariStorage": "minari.dataset.minari_storage",
    "RandomPolicy": "minari.utils",
    "StepData": "minari",
    "StepDataCallback": "minari",
    "combine_datasets": "minari",
    "create_dataset_from_buffers": "minari",
    "create_namespace": "minari.namespace",
    "delete_dataset": "minari",
    "delete_namespace": "minari.namespace",
    "deserialize_space": "minari.serialization",
    "download_dataset": "minari",
    "download_namespace_metadata": "minari.namespace",
    "gen_dataset_id": "minari.dataset.minari_dataset",
    "get_average_reference_score": "minari.utils",
    "get_dataset_path": "minari.storage",
    "get_namespace_metadata": "minari.namespace",
    "get_normalized_score": "minari",
    "get_storage_keys": "minari.dataset._storages",
    "is_image_space": "minari.dataset._storages.hdf5_storage",
    "list_local_datasets": "minari",
    "list_local_namespaces": "minari.namespace",
    "list_remote_datasets": "minari",
    "list_remote_namespaces": "minari.namespace",
    "load_dataset": "minari",
    "namespace_hierarchy": "minari.namespace",
    "parse_dataset_id": "minari.dataset.minari_dataset",
    "serialize_space": "minari.serialization",
    "split_dataset": "minari",
    "supported_dataset_versions": "minari",
    "update_namespace_metadata": "minari.namespace",
    "upload_dataset": "minari",
    "upload_namespace": "minari.namespace",
    "validate_datasets_to_combine": "minari.utils",
    "validate_namespace": "minari.namespace",
}

#: what the documents of Minari 0.3 to 0.4.3 name: our module, the name, its parameters with their
#: defaults (``...`` where there is none)
OLDER: list[tuple[str, str, dict[str, Any]]] = [
    (
        "minari_pipe.datasets.create",
        "create_dataset_from_buffers",
        {
            "dataset_id": ...,
            "buffer": ...,
            "env": None,
            "eval_env": None,
            "algorithm_name": None,
            "author": None,
            "author_email": None,
            "code_permalink": None,
            "minari_version": None,
            "action_space": None,
            "observation_space": None,
            "ref_min_score": None,
            "ref_max_score": None,
            "expert_policy": None,
            "num_episodes_average_score": 100,
        },
    ),
    ("minari_pipe.remotes.hosting", "load_dataset", {"dataset_id": ..., "download": False}),
    ("minari_pipe.datasets.combine", "split_dataset", {"dataset": ..., "sizes": ..., "seed": None}),
    (
        "minari_pipe.remotes.hosting",
        "download_dataset",
        {"dataset_id": ..., "force_download": False},
    ),
    (
        "minari_pipe.datasets.library",
        "list_local_datasets",
        {"latest_version": False, "compatible_minari_version": False},
    ),
    (
        "minari_pipe.remotes.hosting",
        "list_remote_datasets",
        {"latest_version": False, "compatible_minari_version": False},
    ),
    ("minari_pipe.datasets.library", "delete_dataset", {"dataset_id": ...}),
    (
        "minari_pipe.datasets.combine",
        "combine_datasets",
        {"datasets_to_combine": ..., "new_dataset_id": ...},
    ),
    ("minari_pipe.core.scores", "get_normalized_score", {"dataset": ..., "returns": ...}),
    (
        "minari_pipe.recording.collector_v0",
        "DataCollectorV0",
        {
            "env": ...,
            "step_data_callback": "StepDataCallback",
            "episode_metadata_callback": "EpisodeMetadataCallback",
            "record_infos": False,
            "max_buffer_steps": None,
            "max_buffer_episodes": None,
            "observation_space": None,
            "action_space": None,
        },
    ),
    ("minari_pipe.recording.collector_v0", "DataCollectorV0.step", {"self": ..., "action": ...}),
    (
        "minari_pipe.recording.collector_v0",
        "DataCollectorV0.reset",
        {"self": ..., "seed": None, "options": None},
    ),
    ("minari_pipe.recording.collector_v0", "DataCollectorV0.close", {"self": ...}),
    (
        "minari_pipe.recording.collector_v0",
        "DataCollectorV0.save_to_disk",
        {"self": ..., "path": ...},
    ),
    (
        "minari_pipe.recording.collector_v0",
        "create_dataset_from_collector_env",
        {
            "dataset_id": ...,
            "collector_env": ...,
            "eval_env": None,
            "algorithm_name": None,
            "author": None,
            "author_email": None,
            "code_permalink": None,
            "minari_version": None,
            "ref_min_score": None,
            "ref_max_score": None,
            "expert_policy": None,
            "num_episodes_average_score": 100,
        },
    ),
    (
        "minari_pipe.datasets.dataset",
        "MinariDataset.update_dataset_from_buffer",
        {"self": ..., "buffer": ...},
    ),
]


#: what has further optional parameters at the end that can be given by position too
LONGER = (
    "combine_datasets",  # copy, as in 0.4
    "EpisodeBuffer.__init__",  # fields of a dataclass
    "EpisodeData.__init__",
    "MinariStorage.update_from_storage",
    "list_remote_namespaces",  # remote_path, as list_remote_datasets has it
)

#: what the peer has to be given, and this library finds where the provider's own tools do
OPTIONAL = {("upload_dataset", "token"): None, ("upload_namespace", "token"): None}

#: the one changed default; what ours is has a test of its own
LOSSLESS = "jpeg_encoding=False"


def signature(value: Any) -> inspect.Signature:
    return inspect.signature(value)


def comparable(default: Any) -> Any:
    if default is inspect.Parameter.empty:
        return ...
    return default.__name__ if inspect.isclass(default) else default


def parameters(value: Any, *, keyword_only: bool) -> list[tuple[str, Any]]:
    kind = inspect.Parameter.KEYWORD_ONLY
    return [
        (name, LOSSLESS if name == "jpeg_encoding" else comparable(parameter.default))
        for name, parameter in signature(value).parameters.items()
        if (parameter.kind is kind) is keyword_only
    ]


def assert_same_parameters(ours: Any, theirs: Any, name: str) -> None:
    positional = parameters(ours, keyword_only=False)
    expected = [
        (key, OPTIONAL.get((name, key), default))
        for key, default in parameters(theirs, keyword_only=False)
    ]
    assert positional[: len(expected)] == expected, name
    further = dict(positional[len(expected) :])
    assert not further or name in LONGER, f"{name}: {set(further)} must be keyword-only"
    further |= dict(parameters(ours, keyword_only=True))
    for key, default in parameters(theirs, keyword_only=True):
        assert further.pop(key, "missing") == default, f"{name}({key}=)"
    assert ... not in further.values(), f"{name}: a further parameter must be optional"


def members(value: type) -> dict[str, Any]:
    """What a class of the peer, or a base of it there, defines for its users."""
    found: dict[str, Any] = {}
    for base in reversed(value.__mro__):
        if base.__module__.partition(".")[0] == "minari":
            found |= vars(base)
    special = ("__init__", "__call__", "__len__", "__iter__", "__getitem__")
    return {k: v for k, v in found.items() if not k.startswith("_") or k in special}


def peer(name: str) -> Any:
    return getattr(importlib.import_module(PEER[name]), name)


def test_the_table_has_every_public_name_of_both() -> None:
    assert set(minari.__all__) | {"supported_dataset_versions"} <= set(PEER)
    assert set(PEER) <= set(minari_pipe.__all__)


@pytest.mark.parametrize(
    "name", [name for name in PEER if inspect.isfunction(peer(name)) or name == "serialize_space"]
)
def test_a_function_is_called_as_the_peer_s(name: str) -> None:
    assert_same_parameters(getattr(minari_pipe, name), peer(name), name)


@pytest.mark.parametrize(
    "name",
    [name for name in PEER if inspect.isclass(peer(name)) and name != "StepData"],
)
def test_a_class_has_the_members_of_the_peer_s(name: str) -> None:
    ours = getattr(minari_pipe, name)
    for member, theirs in members(peer(name)).items():
        if isinstance(theirs, property) or not callable(getattr(peer(name), member)):
            is_field = member in getattr(ours, "__dataclass_fields__", {})
            assert is_field or hasattr(ours, member), f"{name}.{member}"
        else:
            own = getattr(ours, member)
            assert_same_parameters(own, getattr(peer(name), member), f"{name}.{member}")


@pytest.mark.parametrize("name", ["EpisodeBuffer", "EpisodeData"])
def test_fields_come_in_the_order_of_the_peer_s(name: str) -> None:
    theirs = list(peer(name).__dataclass_fields__)
    assert list(getattr(minari_pipe, name).__dataclass_fields__)[: len(theirs)] == theirs


def test_a_step_has_the_keys_of_the_peer_s() -> None:
    assert list(minari_pipe.StepData.__annotations__) == list(minari.StepData.__annotations__)


def test_values_are_the_peer_s() -> None:
    for name in ("METADATA_FILE_NAME", "supported_dataset_versions"):
        assert getattr(minari_pipe, name) == peer(name)
    assert set(minari_pipe.get_storage_keys()) >= set(peer("get_storage_keys")())


@pytest.mark.parametrize(
    "function",
    [
        minari_pipe.DataCollector,
        minari_pipe.MinariStorage,
        minari_pipe.MinariStorage.new,
        minari_pipe.create_dataset_from_buffers,
    ],
)
def test_images_are_lossless_unless_asked_for_otherwise(function: Any) -> None:
    assert signature(function).parameters["jpeg_encoding"].default is False


def test_a_space_reader_is_registered_as_with_the_peer() -> None:
    own, theirs = minari_pipe.deserialize_space, peer("deserialize_space")
    assert callable(own.register) and callable(theirs.register)
    assert callable(minari_pipe.serialize_space.register)


@pytest.mark.parametrize(("module", "name", "documented"), OLDER, ids=lambda value: str(value)[:60])
def test_names_of_older_generations_take_their_documented_arguments(
    module: str, name: str, documented: dict[str, Any]
) -> None:
    if find_spec(module) is None:
        pytest.skip(f"{module} is not built yet")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    own = {key: comparable(p.default) for key, p in signature(found).parameters.items()}
    assert {key: own.get(key, "missing") for key in documented} == documented
