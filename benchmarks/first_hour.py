"""Times a grid search over 60 whitened photographs of three classes: six settings, three folds.

    python benchmarks/first_hour.py [--output FILE.json]

Photographs are 32×32×3 squares of three pictures that come with scikit-learn and matplotlib. Wall-clock and processor
seconds are recorded; on two idle cores, the former are about half the latter. Also recorded are the size of the file of
a model of 42 photographs, and the processor seconds of fitting ZCA to 40.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline

from defaults import pieces
from tangentless import KernelRidgeClassifier
from tangentless.aside import seconds_compiling
from tangentless.models import save_model
from tangentless.preprocessing import ZCA
from tangentless.timing import environment


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    images, labels = pieces()
    chosen = np.concatenate(
        [np.flatnonzero(labels == label)[:: np.sum(labels == label) // 20][:20] for label in range(3)]
    )
    images, labels = images[chosen], labels[chosen]
    pipeline = make_pipeline(ZCA(mirrors=False), KernelRidgeClassifier("myrtle5"))
    pipeline.fit(images[::6], labels[::6])  # compiles
    grid = {"zca__epsilon": [1e-3, 1e-2, 1e-1], "kernelridgeclassifier__ridge": [1e-4, 1e-2]}
    wall, own, compiling = time.perf_counter(), time.process_time(), seconds_compiling()
    search = GridSearchCV(pipeline, grid, cv=3).fit(images, labels)
    results = {
        "environment": environment(),
        "command": "python benchmarks/first_hour.py",
        "settings": 6,
        "folds": 3,
        "seconds": time.perf_counter() - wall,
        "processor seconds": time.process_time() - own,
        "of them compiling": seconds_compiling() - compiling,
        "accuracy": search.best_score_,
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model")
        save_model(path, pipeline.fit(images[9:51], labels[9:51]))
        results["bytes of a model of 42"] = path.stat().st_size
    start = time.process_time()
    ZCA().fit(images[:40])
    results["processor seconds of ZCA of 40"] = time.process_time() - start
    print(json.dumps(results, indent=1))
    if options.output is not None:
        options.output.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
