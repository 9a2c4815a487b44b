"""The paper's experiments at any scale, one short file each, whose docstring is the claim.

An experiment takes plain options, works through pieces that an interrupted run resumes from (`records.py`), prints its
numbers beside the paper's (`paper.py`), and leaves a JSON record and its pictures. `cli.py` mounts them as
`tangentless reproduce NAME`.
"""
