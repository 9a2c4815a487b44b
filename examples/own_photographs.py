"""
Your own photographs
====================

From a folder for each class to a saved model and a table of predictions.
"""

# %%
# This example makes its folder: squares cut out of three photographs that come with scikit-learn and matplotlib. The
# left parts of the photographs train, and the right parts are the new images. With photographs of your own, begin at
# the next step.
import csv
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib import get_data_path
from PIL import Image
from sklearn.datasets import load_sample_images
from sklearn.pipeline import make_pipeline

import tangentless as tl
from tangentless.datasets import from_folder
from tangentless.models import load_model, save_model

home = Path(tempfile.mkdtemp())
portrait = Image.open(Path(get_data_path(), "sample_data", "grace_hopper.jpg")).convert("RGB")
temple, flower = map(Image.fromarray, load_sample_images().images)
generator = np.random.default_rng(0)
for name, photograph in {"portrait": portrait, "temple": temple, "flower": flower}.items():
    middle = photograph.width // 2
    for part, (start, stop, count) in {"train": (0, middle, 40), "new": (middle, photograph.width, 8)}.items():
        folder = home / part / name
        folder.mkdir(parents=True)
        for number in range(count):
            left, top = generator.integers(start, stop - 96), generator.integers(0, photograph.height - 96)
            photograph.crop((left, top, left + 96, top + 96)).save(folder / f"{number:02}.jpg")

# %%
# ``from_folder`` reads a folder for each class, in any format and size. Begin with small images: the cost of a kernel
# grows with the fourth power of their side.
images, labels, classes = from_folder(home / "train", size=16)
print(images.shape, classes)

# %%
# Whitening of 4×4 patches works with few images. ``flips`` trains on mirror images too, and ``ridge="loo"`` picks the
# ridge by leave-one-out.
kernel = "conv3 relu conv3 relu pool2 conv3 relu globalpool normalize relu"
model = make_pipeline(
    tl.ZCA(patch=4, epsilon=0.1, mirrors=True), tl.KernelRidgeClassifier(kernel, ridge="loo", flips=True)
)
model.fit(images, labels)
print(f"leave-one-out accuracy {model[-1].loo_score_:.1%} at ridge {model[-1].ridge_:.1e}")

# %%
# The model file holds the whitening too. Reading it executes nothing.
save_model(home / "model.npz", model)
model = load_model(home / "model.npz")
new, truth, _ = from_folder(home / "new", size=16)
probabilities = model.predict_proba(new)
predicted = probabilities.argmax(axis=1)
with (home / "predictions.csv").open("w", newline="") as stream:
    writer = csv.writer(stream)
    writer.writerow(["predicted", *(f"p({name})" for name in classes)])
    writer.writerows([classes[best], *np.round(row, 3)] for best, row in zip(predicted, probabilities, strict=True))
print(f"{np.mean(predicted == truth):.1%} of {len(new)} new images are right")

# %%
# New images with their predictions. Titles in red are wrong.
figure, axes = plt.subplots(3, 8, figsize=(10, 4.6))
for at, place in enumerate(axes.flat):
    place.imshow(new[at])
    colour = "tab:red" if predicted[at] != truth[at] else "black"
    place.set_title(f"{classes[predicted[at]]}\n{probabilities[at].max():.2f}", fontsize=8, color=colour)
    place.axis("off")
plt.show()

# %%
# The same on the command line:
#
# .. code-block:: console
#
#    $ tangentless fit myrtle5 train/ --size 32 --patch 4 --flips --ridge loo -o model
#    $ tangentless predict model new/ --csv predictions.csv
