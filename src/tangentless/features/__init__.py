"""Features of patches, the baselines of the paper that learn without labels, as transformers and as kernels.

`RandomPatchFeatures` are those of Coates and Ng: random patches of the training images as filters.
`ConvolutionalKernelNetwork` is that of Mairal et al., one layer or several. Both are transformers of scikit-learn, so
they go before an estimator in a pipeline; `kernel()` makes a kernel of a fitted one, which joins sums and products.
"""

from .base import PatchFeatures
from .kernel_network import ConvolutionalKernelNetwork
from .kernels import FeatureKernel
from .random_patches import RandomPatchFeatures

__all__ = ["ConvolutionalKernelNetwork", "FeatureKernel", "PatchFeatures", "RandomPatchFeatures"]
