"""How Sphinx builds the site, from the pages that make.py puts together."""

import importlib.metadata
from typing import Any

import ascend_sample  # noqa: F401  imports torch in a way that needs no CANN

project = "ascend_sample"
release = importlib.metadata.version("ascend_sample")
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
html_theme = "furo"
html_title = "ascend_sample"
html_show_copyright = False
html_show_sphinx = False
html_theme_options = {"top_of_page_buttons": []}
default_role = "code"
myst_heading_anchors = 4
autodoc_typehints = "none"  # the text says shapes and dtypes, [source] has the annotations
autodoc_member_order = "bysource"
napoleon_use_ivar = True


def skips(_app: object, _kind: str, _name: str, member: object, skip: bool, _options: object) -> bool:
    """Tells whether a member is left out: fields of named tuples are told by the class."""
    return skip or type(member).__name__ == "_tuplegetter"


def setup(app: Any) -> None:
    """Is called by Sphinx."""
    app.connect("autodoc-skip-member", skips)
