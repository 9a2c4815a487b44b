"""The paper's experiments at any scale, one short file each, whose docstring is the claim and the number of trials.

An experiment yields rows through the public API. The runner (`records.py`) keeps pieces that an interrupted run resumes
from, prints the rows beside the paper's (`tangentless.paper`), and leaves a JSON record and pictures. `cli.py` mounts
experiments as `tangentless reproduce NAME`, and `report.py` writes the page of results from records.
"""
