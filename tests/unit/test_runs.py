import subprocess
import sys

import pytest

import fedhca2
from fedhca2 import Experiment, Run
from fedhca2.errors import UserError
from made_run import made_run
from small_run import small


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = fedhca2.nonsense


def test_importing_the_package_imports_no_torch():
    code = "import sys, fedhca2; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_another_method_can_be_run_too():
    assert isinstance(Experiment.load("demo").with_method("fedavg"), Experiment)


def test_a_run_gives_its_result(tmp_path):
    made_run(tmp_path, better=1.1)
    assert Run.open(tmp_path).result.delta_m == pytest.approx(10)


def test_an_unfinished_run_has_no_result(tmp_path):
    made_run(tmp_path, finished=False)
    with pytest.raises(UserError, match="expected a finished run"):
        _ = Run.open(tmp_path).result


def test_a_notebook_shows_the_gains(tmp_path):
    made_run(tmp_path, better=1.1)
    assert "<td>+10.0 %</td>" in Run.open(tmp_path)._repr_html_()


def test_a_report_lies_in_the_run_by_default(tmp_path):
    made_run(tmp_path)
    assert Run.open(tmp_path).report() == tmp_path / "report.html"


@pytest.mark.slow
def test_a_run_that_has_ended_goes_on_for_more_rounds(tmp_path):
    fedhca2.run(small(rounds=1), tmp_path / "run", quiet=True)
    assert fedhca2.resume(tmp_path / "run", ["rounds=2"], quiet=True).result.rounds == 2


@pytest.mark.slow
def test_a_comparison_has_a_row_for_each_method_and_for_local(tmp_path):
    found = fedhca2.compare(small(rounds=1), ["fedavg"], tmp_path, quiet=True)
    assert list(found.entries) == ["local", "fedavg"]
