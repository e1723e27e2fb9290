import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from fedhca2.strict_yaml import YamlError, parse_yaml, read_yaml


def bomb(line):
    """Nine lines, each repeating the previous one nine times."""
    return "a: &a {x: lol}\n" + "".join(
        line.format(name=name, nine=",".join([f"*{before}"] * 9)) for before, name in pairwise("abcdefghi")
    )


REFUSED = {
    "lists in lists": ("[" * 100_000, "line 1, column 65: found more than 64 levels"),
    "keys in keys": ("{a: " * 100_000, "found more than 64 levels"),
    "dashes": ("- " * 100_000, "found more than 64 levels"),
    "no boolean": ("a: !!bool maybe", "line 1, column 4: found 'maybe', which is not a valid bool"),
    "no number": ("!!int x", "found 'x', which is not a valid int"),
    "a number of many digits": ("1" * 5000, "which is not a valid int"),
    "a hexadecimal number of many digits": ("0x" + "1" * 5000, "which is not a valid int"),
    "no date": ("!!timestamp x", "could not determine a constructor"),
    "bytes": ("!!binary aGk=", "could not determine a constructor"),
    "code": ("!!python/object/apply:os.getcwd []", "could not determine a constructor"),
    "a bomb of aliases": (bomb("{name}: &{name} [{nine}]\n"), "found more than 100000 values"),
    "a bomb of merged keys": (bomb("{name}: &{name} {{<<: [{nine}]}}\n"), "found more than 100000 values"),
    "a list in itself": ("&a [1, *a]", "line 1, column 8: found 'a' within itself"),
    "a mapping merged into itself": ("&a {<<: *a}", "found 'a' within itself"),
    "a key twice": ("rounds: 3\nseed: 1\nrounds: 5\n", "line 3, column 1: found the key 'rounds' a second time"),
    "a key twice, quoted": ("{a: 1, 'a': 1}", "found the key 'a' a second time"),
    "a control character": ("a: \0", "control characters are not allowed"),
    "two documents": ("a: 1\n---\na: 2\n", "found another document"),
    "no YAML": ("a: [1, 2", "line 2, column 1: while parsing a flow sequence, did not find expected ',' or ']'"),
}


@pytest.mark.parametrize(("text", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_plain_yaml_is_refused_with_location_and_reason(text, reason):
    with pytest.raises(YamlError) as error:
        parse_yaml(text)
    assert reason in str(error.value)
    assert "\n" not in str(error.value)


PLAIN = [
    "a: [1, 2.5, true, null, text]\nb: {c: [d]}\n",
    "a: &a {x: 1, y: 2}\nb: &b {<<: *a, x: 3}\nc: {<<: *b, y: 4}\n",  # an own key overrides a merged one
    "a: &a [1, 2]\nb: [*a, *a]\n",
    "",
]


@pytest.mark.parametrize("text", PLAIN)
def test_plain_yaml_is_parsed_as_by_pyyaml(text):
    assert parse_yaml(text) == yaml.safe_load(text)
    assert parse_yaml("name: 2020-01-01") == {"name": "2020-01-01"}  # but a date is text


def test_a_file_that_is_not_utf8_or_has_no_end_is_refused(tmp_path):
    (tmp_path / "a.yaml").write_bytes(b"name: \xff")
    with pytest.raises(YamlError, match="expected UTF-8, got invalid start byte at byte 6"):
        read_yaml(tmp_path / "a.yaml")
    with pytest.raises(YamlError, match="expected at most 16777216 bytes, got more"):
        read_yaml(Path("/dev/zero"))


MOST_MEMORY = 2**30
BOUNDED = f"""
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, ({MOST_MEMORY}, {MOST_MEMORY}))
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
from fedhca2.strict_yaml import YamlError, parse_yaml
try:
    parse_yaml(sys.stdin.read())
except YamlError as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.parametrize("text", ["- 1\n" * 2**22, "[" * 2**24, bomb("{name}: &{name} [{nine}]\n")])
def test_the_largest_text_takes_little_time_and_memory(text):
    ended = subprocess.run([sys.executable, "-c", BOUNDED], input=text, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "found more than" in ended.stdout
