"""Check a dataset before it is published; each check finds one kind of fault and its place.

``run(Subject(...))`` reads every episode once and returns a ``Report`` that converts to JSON.
"""

from __future__ import annotations

from minari_pipe.checks.base import Check, Episode, Finding, Options, Subject
from minari_pipe.checks.runner import CHECKS, Report, run

__all__ = ["CHECKS", "Check", "Episode", "Finding", "Options", "Report", "Subject", "run"]
