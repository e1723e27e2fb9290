"""What is released: a wheel with all that the package needs, and the same version and tools everywhere."""

import json
import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
import yaml

import fedhca2
from small import BRIEF

ROOT = Path(__file__).parents[2]
PACKAGE = Path(fedhca2.__file__).parent
BUILD = "import sys; from setuptools import build_meta; build_meta.build_{}(sys.argv[1])"


def build(kind, folder, target):
    """What setuptools makes of a folder, as pip asks for it."""
    command = [sys.executable, "-c", BUILD.format(kind), target]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    (made,) = target.glob("fedhca2-*")
    return made


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    return build("sdist", ROOT, tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def wheel(sdist, tmp_path_factory):
    """Built from the sdist, so that nothing else of the repository can be in it."""
    unpacked = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as archive:
        archive.extractall(unpacked, filter="data")
    return build("wheel", unpacked / f"fedhca2-{fedhca2.__version__}", tmp_path_factory.mktemp("wheel"))


@pytest.mark.slow
def test_the_wheel_has_every_file_of_the_package_and_no_other(wheel):
    here = {path.relative_to(PACKAGE.parent).as_posix() for path in PACKAGE.rglob("*") if path.is_file()}
    expected = {name for name in here if "__pycache__" not in name}
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert packed == expected


@pytest.mark.slow
def test_the_sdist_has_no_tests(sdist):
    with tarfile.open(sdist) as archive:
        assert [name for name in archive.getnames() if re.search(r"/(tests|docs|build|runs)/", name)] == []


@pytest.mark.slow
def test_the_wheel_runs_without_the_repository(wheel, tmp_path):
    venv.create(tmp_path / "venv", symlinks=True)
    (packages,) = (tmp_path / "venv" / "lib").glob("python3*/site-packages")
    zipfile.ZipFile(wheel).extractall(packages)
    shared = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "shared.pth").write_text("\n".join(shared))  # what it depends on; `make release` installs that as well
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    (tmp_path / "empty").mkdir()
    command = [tmp_path / "venv" / "bin" / "python", "-m", "fedhca2", "run", "--out", "run"]
    command += [word for setting in [*BRIEF, "method=local", "baseline=false"] for word in ("--set", setting)]
    subprocess.run(command, cwd=tmp_path / "empty", env=environment, check=True, capture_output=True)
    assert json.loads((tmp_path / "empty" / "run" / "result.json").read_text())["versions"]["fedhca2"]


def test_the_version_is_in_the_changelog_and_elsewhere_written_once():
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert re.findall(r"^## \[(.+?)\]", text, re.M)[:2] == ["Unreleased", fedhca2.__version__]
    written = (ROOT / "pyproject.toml", ROOT / "CITATION.cff", ROOT / "docs" / "site" / "conf.py")
    assert [path.name for path in written if fedhca2.__version__ in path.read_text("utf-8")] == []


def test_a_commit_is_checked_by_the_tools_of_make_lint():
    (local,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text("utf-8"))["repos"]
    used = [hook["entry"].split()[:2] for hook in local["hooks"]]
    lint = re.search(r"^lint:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text("utf-8"), re.M)[1]
    expected = re.findall(r"\$\(BIN\)/(\S+)(?: (\w+))?", lint)
    assert [[f".venv/bin/{tool}", *filter(None, [word])] for tool, word in expected] == used


def test_ci_runs_targets_of_the_makefile():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8"))
    targets = workflow["jobs"]["make"]["strategy"]["matrix"]["target"]
    assert {"check", "test"} <= set(targets)
    makefile = (ROOT / "Makefile").read_text("utf-8")
    assert [target for target in targets if not re.search(rf"^{target}:", makefile, re.M)] == []
