"""The site: README, the pages of docs/, the lessons with their outputs, and a reference of the public names.

Sphinx reads them where they lie, so that a link means the same here and in the repository.
"""

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from sphinx.pycode import ModuleAnalyzer

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

project = "conv-as-attention"
html_title = "Convolutions as attention"
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.linkcode",
    "sphinx_external_toc",
    "repository_files",
]
include_patterns = ["*.md", "docs/*.md", "docs/api/*.rst", "docs/teaching/one_*.py", "examples/README.md"]
external_toc_path = "docs/site/contents.yml"
html_extra_path = ["index.html", "../demo.html", "../learned.html"]

mathjax_path = "tex-svg-full.js"  # one file, with its fonts in it
html_static_path = [
    str(Path(find_spec("sphinx-mathjax-offline").origin).parent / "static/mathjax" / mathjax_path),
    "wide.css",
]
html_css_files = ["wide.css"]
html_theme = "furo"
html_copy_source = False
html_show_copyright = False
nitpicky = True
nitpick_ignore_regex = [  # what others document: a link would be a request to outside
    ("py:.*", r"(torch|numpy|collections|fractions|hypothesis|os|pathlib)\..*"),
]

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4
nb_custom_formats = {".py": ["jupytext.reads", {"fmt": "py:percent"}]}
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_ipywidgets_js = {}  # these would come from another host

autosummary_generate = False
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
napoleon_attr_annotations = False  # they stand in the signature
python_maximum_signature_line_length = 90
python_use_unqualified_type_names = True


def linkcode_resolve(domain, about):
    """The line of a class or function on the page of its file; pages of the reference are two folders deep."""
    name = about["fullname"]
    if not about["module"]:  # an attribute that a class describes
        return None
    value = getattr(import_module(about["module"]), name.partition(".")[0])
    analyzer = ModuleAnalyzer.for_module(getattr(value, "__module__", about["module"]))
    if name not in analyzer.find_tags():
        return None
    path = Path(analyzer.srcname).relative_to(ROOT).as_posix()
    return f"../../files/{path}.html#L-{analyzer.find_tags()[name][1]}"
