"""Measures the size of the HTML report of a fit, and how fast it opens and reacts in headless Chromium.

    python benchmarks/report.py IMAGES.npy LABELS.npy [--kernel TEXT] [--shrink 4] [--patch 4] [--keep r.html]

Fits a model, writes its report, and opens it several times, each in a fresh browser context. *Opening* ends when the
matrix is drawn. *Answering* lasts from a movement of the pointer to the next frame, which shows both images. Minimum
and median of the repetitions are recorded; the minimum is least disturbed by other work on the machine. Needs
Playwright and Chromium.
"""

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from playwright.sync_api import sync_playwright

import tangentless as tl
from tangentless.files import write_json
from tangentless.timing import command, environment

_WATCH = """
new MutationObserver(() => { window.readyAt ??= performance.now(); })
  .observe(document, { subtree: true, attributes: true, attributeFilter: ["data-ready"] });
addEventListener("pointermove", (event) => {
  requestAnimationFrame(() => setTimeout(() => { window.answered ??= performance.now() - event.timeStamp; }));
}, { once: true });
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("images", type=Path)
    parser.add_argument("labels", type=Path)
    parser.add_argument("--kernel", default="myrtle5")
    parser.add_argument(
        "--shrink", type=int, default=4, help="divide the sides of images by this before computing the kernel"
    )
    parser.add_argument("--patch", type=int, default=4, help="side of the patches for whitening, in pixels")
    parser.add_argument("--ridge", type=float, default=1e-3)
    parser.add_argument("--keep", type=Path, help="write the report to this file and keep it")
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/report.json"))
    options = parser.parse_args()
    X, y = np.load(options.images), np.load(options.labels)
    small = shrink(X, options.shrink)
    K = tl.kernel(options.kernel)(tl.ZCA(patch=options.patch).fit_transform(small))
    model = tl.KernelRidgeClassifier("precomputed", ridge=options.ridge).fit(K, y)
    path = options.keep or Path(tempfile.mkdtemp()) / "report.html"
    title = f"CIFAR-10, {len(X):,} images: {options.kernel}"
    start = time.perf_counter()
    tl.write_report(path, model, K, y, images=X, title=title, force=True)
    writing = time.perf_counter() - start
    found = measure(path, options.repeat)
    content = {
        "environment": environment(),
        "command": command(sys.argv),
        "images": len(X),
        "kernel": f"{options.kernel} of images whitened by patches, {small.shape[1]}×{small.shape[2]}",
        "leave-one-out accuracy": model.loo_score_,
        "bytes": path.stat().st_size,
        "seconds to write": round(writing, 2),
        "load average": os.getloadavg()[0],
        **found,
    }
    write_json(options.json, content)
    print(content)


def shrink(images: np.ndarray, by: int) -> np.ndarray:
    """Average over squares of `by` × `by` pixels."""
    count, height, width, channels = images.shape
    return images.reshape(count, height // by, by, width // by, by, channels).mean(axis=(2, 4))


def measure(path: Path, repeat: int) -> dict[str, object]:
    """Open the report `repeat` times; returns seconds to open, milliseconds to answer, and console messages."""
    opened, answered, trouble = [], [], []
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for _ in range(repeat):
            context = browser.new_context(viewport={"width": 1280, "height": 900})
            page = context.new_page()
            page.add_init_script(_WATCH)
            page.on("console", lambda message: trouble.append(message.text))
            page.on("pageerror", lambda error: trouble.append(str(error)))
            page.goto(path.resolve().as_uri())
            page.wait_for_selector("html[data-ready]")
            opened.append(page.evaluate("readyAt") / 1000)
            page.locator("#canvas").hover()
            page.wait_for_function("window.answered !== undefined")
            assert page.locator("#pair .thumb").count() == 2
            answered.append(page.evaluate("answered"))
            context.close()
        version = browser.version
        browser.close()
    return {
        "chromium": version,
        "seconds to open, least and median": [round(min(opened), 3), round(statistics.median(opened), 3)],
        "milliseconds to answer, least and median": [round(min(answered), 1), round(statistics.median(answered), 1)],
        "repetitions": repeat,
        "console messages": trouble,
    }


if __name__ == "__main__":
    main()
