"""The paper's experiments at any scale. Each is a short file whose docstring states the claim and the number of trials.

An experiment computes rows through the public API. The runner (`records.py`) saves partial results ("pieces"), from
which an interrupted run resumes, prints the rows beside the paper's (`tangentless.paper`), and writes a JSON record and
pictures. `cli.py` mounts experiments as `tangentless reproduce NAME`, and `report.py` writes the page of results from
records.
"""
