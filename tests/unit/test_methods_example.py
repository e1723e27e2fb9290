import runpy
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "add_a_method.py"


def test_the_example_of_a_method_does_what_it_says(capsys):
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert "eve adds [0.0, -1.0]" in capsys.readouterr().out
