"""Checks of a dataset before it is published: each finds one kind of fault and says where it is.

``run(Subject(...))`` reads every episode once and returns a ``Report`` that turns into plain JSON.
"""

from __future__ import annotations

from minari_pipe.checks.base import Check, Episode, Finding, Options, Subject
from minari_pipe.checks.runner import CHECKS, Report, run

__all__ = ["CHECKS", "Check", "Episode", "Finding", "Options", "Report", "Subject", "run"]
