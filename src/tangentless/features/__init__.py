"""Features of patches, learnt without labels, as transformers and as kernels. They are baselines of the paper.

`RandomPatchFeatures` are those of Coates and Ng: the filters are random patches of the training images.
`ConvolutionalKernelNetwork` is that of Mairal et al., with one or more layers. Both are scikit-learn transformers, for
pipelines; `kernel()` of a fitted one returns a kernel that can be added to and multiplied with others.
"""

from .base import PatchFeatures
from .kernel_network import ConvolutionalKernelNetwork
from .kernels import FeatureKernel
from .random_patches import RandomPatchFeatures

__all__ = ["ConvolutionalKernelNetwork", "FeatureKernel", "PatchFeatures", "RandomPatchFeatures"]
