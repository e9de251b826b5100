"""The site of the documents: `make docs` builds it, without a network and without running anything."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(Path(__file__).with_name("_extensions")))

project = "fedlm"
author = "The fedlm maintainers"
project_copyright = "the fedlm maintainers"

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
    "command_reference",
    "python_reference",
]
# Sources are read from the root of the repository, so that a relative link leads to the same file as on a code host.
root_doc = "docs/index"
exclude_patterns = [
    *(entry.name for entry in ROOT.iterdir() if entry.is_dir() and entry.name not in ("docs", "examples")),
    "README.md",
    "docs/_*",
    "**/.ipynb_checkpoints",
]
templates_path = ["_templates"]
default_role = "code"
nitpicky = True
# What docstrings and type hints name of other libraries, and of modules that have no page, is not linked.
nitpick_ignore_regex = [("py:.*", ".*")]

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "fieldlist"]
myst_heading_anchors = 4
nb_execution_mode = "off"
nb_merge_streams = True

autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
autodoc_member_order = "bysource"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
toc_object_entries_show_parents = "hide"
python_maximum_signature_line_length = 100
autodoc_preserve_defaults = True

html_theme = "furo"
html_title = "fedlm"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_additional_pages = {"index": "to_front_page.html"}
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}
# A block that names no language is a drawing or plain text.
highlight_language = "none"
pygments_style = "friendly"
pygments_dark_style = "monokai"
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True
