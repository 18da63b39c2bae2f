"""How Sphinx builds the site, from the pages that make.py puts together."""

import importlib.metadata
from typing import Any

import ascend_sample  # noqa: F401  imports torch in a way that needs no CANN

project = "ascend_sample"
release = importlib.metadata.version("ascend_sample")
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
html_theme = "furo"
html_title = "ascend_sample"
html_static_path = ["style.css"]
html_css_files = ["style.css"]
html_show_copyright = False
html_show_sphinx = False
html_theme_options = {"top_of_page_buttons": []}
default_role = "code"
myst_heading_anchors = 4
exclude_patterns = ["downloads"]  # the same notebooks, as files
nb_execution_timeout = -1
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_output_stderr = "remove"  # progress
nb_merge_streams = True
nb_code_prompt_show = "Show the code"
nb_code_prompt_hide = "Hide the code"
autodoc_typehints = "none"  # the text says shapes and dtypes, [source] has the annotations
autodoc_member_order = "bysource"
napoleon_use_ivar = True


def skips(_app: object, _kind: str, _name: str, member: object, skip: bool, _options: object) -> bool:
    """Tells whether a member is left out: fields of named tuples are told by the class."""
    return skip or type(member).__name__ == "_tuplegetter"


def setup(app: Any) -> None:
    """Is called by Sphinx."""
    app.connect("autodoc-skip-member", skips)
