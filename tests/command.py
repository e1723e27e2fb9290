"""The command line, called in the process of a test."""

import json

from typer.testing import CliRunner

from fedhca2.cli import app


def invoke(*words, **options):
    """Call a command."""
    return CliRunner().invoke(app, [str(word) for word in words], **options)


def printed(*words, **options):
    """What a command prints to standard output; it should succeed."""
    done = invoke(*words, **options)
    assert done.exit_code == 0, (done.output, done.exception)
    return done.stdout


def parse_strictly(text):
    """Parse JSON as other programs do, without NaN and infinities."""

    def refuse(name):
        raise ValueError(f"{name} is no JSON")

    return json.loads(text, parse_constant=refuse)


def as_json(*words):
    """What a command gives as strict JSON."""
    return parse_strictly(printed(*words, "--json"))


def refused(*words):
    """The one line that a command prints; it should refuse its input."""
    done = invoke(*words)
    line = done.output.lstrip("\n")  # what a progress bar leaves
    assert (done.exit_code, line.count("\n")) == (2, 1), (done.output, done.exception)
    return line
