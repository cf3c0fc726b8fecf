"""Turns errors of Hydra and OmegaConf into one line that says what to do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields

import yaml
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf.errors import OmegaConfBaseException

from minari_pipe.errors import ConfigError, did_you_mean
from minari_pipe.pipeline.config import schema
from minari_pipe.pipeline.config.conf_files import GROUPS, conf_dir


@contextmanager
def translated() -> Iterator[None]:
    """Turn errors of Hydra, OmegaConf and the YAML parser into a ``ConfigError`` of one line."""
    try:
        yield
    except MissingConfigException as exc:
        raise ConfigError(_missing_choice(exc)) from exc
    except OverrideParseException as exc:
        raise ConfigError(_unreadable(exc)) from exc
    except (HydraException, OmegaConfBaseException) as exc:
        cause: BaseException | None = exc
        while cause is not None:
            if isinstance(cause, ConfigError):  # raised by one of our resolvers
                raise ConfigError(str(cause)) from exc
            cause = cause.__cause__ or cause.__context__
        raise ConfigError(hydra_message(exc)) from exc
    except UnicodeDecodeError as exc:
        raise ConfigError(f"a file below {conf_dir()} is not UTF-8 text: {exc}") from exc
    except AttributeError as exc:  # OmegaConf, for other keys in a section whose default is null
        if "full_key: " not in str(exc):
            raise
        key = str(exc).split("full_key: ")[1].split()[0]
        raise ConfigError(f"unknown keys in {key}; see --help") from exc
    except ValueError as exc:
        if "Config group override" not in str(exc):
            raise
        raise ConfigError(f"{exc}; choose one by name, such as policy=random") from exc
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark
        where = f"{mark.name}:{mark.line + 1}: " if mark else ""
        raise ConfigError(f"{where}{exc.problem}") from exc
    except yaml.YAMLError as exc:
        raise ConfigError(" ".join(str(exc).split())) from exc


def _missing_choice(exc: MissingConfigException) -> str:
    group, _, name = (exc.missing_cfg_file or "").partition("/")
    options = [option for option in exc.options or [] if not option.endswith("_schema")]
    if not name:
        return hydra_message(exc)
    if group not in GROUPS and not options:
        hint = did_you_mean(group, GROUPS)
        return f"no config group {group!r}.{hint} Known: {', '.join(GROUPS)}"
    hint = did_you_mean(name, options, cutoff=0.4)
    return f"no {group} {name!r}.{hint} Known: {', '.join(options)}"


def _unreadable(exc: OverrideParseException) -> str:
    """Return the message for an override that Hydra cannot parse, such as ``author.name=Zoë``."""
    key, equals, value = exc.override.partition("=")
    lines = [line.strip() for line in str(exc).splitlines()]
    kept = [ln for ln in lines if not ln.startswith(("^", "See https", "LexerNoViable"))]
    reason = f" ({' '.join(kept)})" if kept else ""
    if not equals:
        return f"{exc.override!r} cannot be read{reason}; expected KEY=VALUE"
    quoted = value.replace("'", "\\'")
    return (
        f"{exc.override!r} cannot be read{reason}; quote a value with special characters twice: "
        f"\"{key}='{quoted}'\""
    )


def hydra_message(exc: Exception) -> str:
    """Return the message of an error of Hydra or OmegaConf as one line, without internals."""
    lines = [line.strip() for line in str(exc).splitlines() if line.strip()]
    key = next((ln.split(":", 1)[1].strip() for ln in lines if ln.startswith("full_key:")), "")
    cause = str(exc.__cause__ or "").strip().splitlines()[:1]
    noise = ["full_key", "object_type", "reference_type", "provider=", "Config search path"]
    if "not in struct" not in " ".join([*lines, *cause]):  # only free-form sections accept new keys
        noise.append("To append")
    kept = [ln for ln in lines + cause if not ln.startswith(tuple(noise))]
    text = " ".join(dict.fromkeys(kept))
    if section := _of_section(key, text):
        return section
    text = f"{key}: {text}" if key and key not in text else text
    text = re.sub(
        r" \S+ \(DictConfig\) does not support deletion", ": a key cannot be removed", text
    )
    return f"{text}{_known_keys(text)}"


def _of_section(key: str, text: str) -> str | None:
    """Return the message for a section that is set to a value, such as ``author=Ada``."""
    found = re.search(r"\w+ is not a subclass of (\w+)\. value: (.*)", text)
    node = getattr(schema, found[1], None) if found else None
    if found is None or node is None:
        return None
    file = re.match(r"In '[^']*': ", text)  # OmegaConf does not name the key there
    key = key or next((k for k, section in schema.SECTIONS.items() if section is node), "")
    known = [f.name for f in fields(node) if not f.name.startswith("_")]
    example = f", such as {key}.{known[0]}={found[2]}" if key else ""
    return (
        f"{file[0] if file else ''}{key or 'a section'} is {found[2]!r}; expected its keys "
        f"({', '.join(known)}){example}"
    )


def _known_keys(text: str) -> str:
    """Return what to append to OmegaConf's message about an unknown key."""
    found = re.search(r"Key '([^']*)' not in '(\w+)'", text)
    node = getattr(schema, found[2], None) if found else None
    if found is None or node is None:
        return ""
    if node is schema.Dataset and found[1] in [f.name for f in fields(schema.Config)]:
        return "; a file in conf/dataset/ must begin with the line `# @package _global_`"
    known = [f.name for f in fields(node) if not f.name.startswith("_")]
    return f".{did_you_mean(found[1], known)} Known keys: {', '.join(known)}"
