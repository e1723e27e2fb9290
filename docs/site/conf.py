"""Sphinx's settings. `make docs` builds the site."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("OMP_NUM_THREADS", "1")  # runs of this size are faster so

import docstrings
import stage

from fedhca2 import __version__

project = "fedhca2"
author = "The fedhca2 developers"
version = release = __version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.mathjax", "sphinx_copybutton"]

html_theme = "furo"
html_title = f"fedhca2 {version}"
pygments_dark_style = "github-dark"
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False
html_static_path = [str(Path(__file__).with_name("site.css"))]
html_css_files = ["site.css"]
highlight_language = "none"  # of a block that names no language

# One file with all of MathJax, so that formulas need no network; glyphs are drawn, not loaded as fonts.
MATHJAX = Path(find_spec("sphinx-mathjax-offline").origin).parent / "static" / "mathjax" / "tex-svg.js"
html_static_path.append(str(MATHJAX))
mathjax_path = MATHJAX.name

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4  # links to headings, with GitHub's names

nb_execution_mode = "cache"
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_execution_excludepatterns = [] if find_spec("rdkit") and find_spec("MoleculeACE") else ["**/molecules.ipynb"]
nb_merge_streams = True
nb_output_stderr = "remove"  # warnings about the machine; errors stop the build

autodoc_default_options = {"exclude-members": "model_config"}
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100

# Names of ours should be found. Other packages' documentation is elsewhere, and what is internal has no page.
nitpicky = True
nitpick_ignore_regex = [
    (r"py:.*", r"(?!fedhca2\b).*"),
    (r"py:.*", r"fedhca2\.(?!(methods|flower|tasks|data)\.[A-Z]).*"),
]


def write_source(app, config):
    """Write the pages before they are read."""
    source = Path(app.srcdir)
    config.html_extra_path = [str(source.parent / "extra")]
    stage.write_source(source, source.parent / "extra")


def setup(app):
    """Connect our parts."""
    app.connect("config-inited", write_source)
    app.connect("autodoc-process-docstring", docstrings.process)
    app.connect("autodoc-process-signature", docstrings.shorten)
    app.connect("missing-reference", docstrings.find_public_name)
