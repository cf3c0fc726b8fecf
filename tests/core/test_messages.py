"""Messages stay short, show no credentials of an address, and hide nothing else."""

from __future__ import annotations

import sys
import time
import warnings

import pytest

from minari_pipe.core.messages import (
    each_warning_once,
    escaped_stdout,
    print_line,
    printable,
    without_credentials,
)

SECRETS = {
    "file://ada:hunter2@host/x": "file://…@host/x",
    "no 'https://ada@host/x.hdf5', nor b": "no 'https://…@host/x.hdf5', nor b",
    "s3://ada:hun@ter2@bucket": "s3://…@bucket",
    "s3://ada:hun/ter2@bucket/x": "s3://…@bucket/x",
    "at 'https://host/x?token=hunter2': no": "at 'https://host/x?…': no",
    "GET http://host/x?a=hunter2&sig=b (404), again": "GET http://host/x?… (404), again",
    "see (https://host?token=hunter2).": "see (https://host?…).",
    "[s3://a?b=hun'ter2, 's3://c?d=hunter2','e']": "[s3://a?…, 's3://c?…','e']",
    "Looked at https:/ada:hunter2@host/x, s3:/b?a=hunter2/data": (
        "Looked at https:/…@host/x, s3:/b?…"
    ),
    "ray://ada:hunter2@host:1/x?y=hunter2": "ray://…@host:1/x?…",
}
ORDINARY = [
    "ada@example.org wrote a?b",
    "no dataset 'a'. Did you mean 'b'? See https://example.org/docs.",
    "is it at https://example.org/x? If not, ask ada@example.org",
    "did you mean 's3://bucket'?",
    "http://127.0.0.1:8080/api/@latest, http://[::1]:8080/@latest",
    "file:///home/ada@work/x, /srv//ada@work/x C:/ada@x and a:/b?c",
    "s3://bucket/a@b",
]


@pytest.mark.parametrize(("text", "shown"), SECRETS.items())
def test_user_information_and_queries_of_addresses_are_hidden(text, shown):
    assert without_credentials(text) == shown
    assert without_credentials(shown) == shown


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_text_is_not_hidden(text):
    assert without_credentials(text) == text


def test_no_line_on_stderr_shows_credentials(capsys):
    print_line("warning", "https://ada:hunter2@host/x?token=hunter2 is slow")
    assert capsys.readouterr().err == "warning: https://…@host/x?… is slow\n"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("tab\tand\nnewline, é, 漢 and \U0001f600", None),
        ("\x1b[31m\r\x00\x7f", r"\x1b[31m\r\x00\x7f"),
        ("\x9b1m\x85\xa0", r"\x9b1m\x85\xa0"),
        ("\u202e\u2028\ud800\U000e0001", r"\u202e\u2028\ud800\U000e0001"),
    ],
)
def test_what_a_terminal_would_interpret_is_escaped_on_stdout(text, shown, capsys):
    with escaped_stdout():
        print(text, end="")
        sys.stdout.writelines([text])
    assert printable(text) == (shown or text)
    assert capsys.readouterr().out == (shown or text) * 2


def test_a_closed_stdout_stays_closed(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    with escaped_stdout():
        print("to nowhere")
    assert sys.stdout is None


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


@pytest.mark.parametrize("text", ["//a://a:" * 25_000, "https://" * 25_000, "a:/?" * 50_000])
def test_a_text_of_a_stranger_takes_no_time_to_be_printed(text, capfd) -> None:
    began = time.process_time()
    print_line("error", text)
    assert time.process_time() - began < 2
    assert len(capfd.readouterr().err) < 5000
