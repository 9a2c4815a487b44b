"""The documentation site: `make docs` builds it from these pages, the docstrings, the gallery and stored records."""

import sys
from pathlib import Path

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS))

import tangentless  # noqa: E402

project = "tangentless"
author = "the tangentless authors"
project_copyright = author
version = release = tangentless.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
    "site_pages",
]
exclude_patterns = ["generated/cost.json"]
nitpicky = True
templates_path = ["_templates"]

# Pages are Markdown, read on the site and in the repository alike.
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
myst_url_schemes = ["http", "https", "mailto"]

# The reference comes from docstrings, in which `a word` in backticks is code.
default_role = "code"
autosummary_generate = True
autosummary_filename_map = {  # names that differ by case only, which some file systems take for one
    "tangentless.solve.calibration": "tangentless.solve.calibration-function",
    "tangentless.gram.status": "tangentless.gram.status-function",
    "tangentless.kernel": "tangentless.kernel-function",
}
autodoc_default_options = {
    "members": True,
    "inherited-members": "BaseEstimator,Exception,Module",
}
toc_object_entries_show_parents = "hide"
autodoc_member_order = "groupwise"
autodoc_typehints = "none"
nitpick_ignore_regex = [("py:.*", r"(numpy|torch)\..*")]  # types of fields, whose pages are elsewhere

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "filename_pattern": r"\.py$",
    "within_subsection_order": "site_pages.gallery_order",
    "reset_modules": ("matplotlib", "site_pages.reset_figures"),
    "abort_on_example_error": True,
    "only_warn_on_example_error": False,
    "remove_config_comments": True,
    "show_memory": False,
    "show_signature": False,
    "min_reported_time": 0,
    "download_all_examples": True,
    "doc_module": ("tangentless",),
    "backreferences_dir": None,
}

html_theme = "pydata_sphinx_theme"
html_title = "tangentless"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_favicon = "_static/logo.svg"
html_copy_source = html_show_sourcelink = False
html_theme_options = {
    "logo": {"text": "tangentless", "image_light": "_static/logo.svg", "image_dark": "_static/logo.svg"},
    "header_links_before_dropdown": 8,
    "navbar_align": "left",
    "show_prev_next": True,
    "secondary_sidebar_items": ["page-toc"],
    "show_toc_level": 2,
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_context = {"default_mode": "auto"}  # light or dark, as the system is
html_sidebars = {"index": [], "install": [], "first-five-minutes": [], "gallery/index": []}

# `make linkcheck` asks for external addresses, which needs a network; internal links are checked after every build.
linkcheck_timeout = 20
linkcheck_retries = 2
