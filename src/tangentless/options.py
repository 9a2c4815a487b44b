"""Options and arguments that commands share, and what their texts stand for: devices, images, symmetries."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from .errors import InputError, ParameterError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .devices import Device, Precision
    from .kernel import Kernel


def architecture_names() -> list[str]:
    """Names of architectures, for completion in a shell."""
    from .architecture import NAMED

    return list(NAMED)


def backend_names() -> list[str]:
    """Names of backends, for completion in a shell."""
    from .devices import NAMES

    return list(NAMES)


ArchitectureArgument = Annotated[
    str,
    typer.Argument(
        metavar="ARCH",
        help="Architecture: a name, such as myrtle5, or layers in quotes.",
        autocompletion=architecture_names,
    ),
]
KernelArgument = Annotated[
    str,
    typer.Argument(
        metavar="ARCH",
        help="Architecture: a name, such as myrtle5, or layers in quotes; or a kernel such as 'Gaussian(gamma=0.1)'.",
        autocompletion=architecture_names,
    ),
]
ImagesArgument = Annotated[str, typer.Argument(metavar="X", help="Images (N, H, W, C): a .npy file, or FILE.npz:NAME.")]
SymmetryOption = Annotated[
    str,
    typer.Option(
        metavar="TEXT", help="Average the kernel over copies of images: mirror, rotations, or 'mirror shifts1'."
    ),
]
KeyOption = Annotated[str | None, typer.Option(help="Name of the array of images, if X is an .npz file.")]
RecipeArgument = Annotated[
    str,
    typer.Argument(
        metavar="ARCH",
        help="Architecture: a name, such as myrtle5, or layers in quotes; or a kernel such as 'Gaussian(gamma=0.1)'. "
        "Or a recipe: best or paper, for images whose sides are multiples of 4; only fit takes recipes.",
        autocompletion=architecture_names,
    ),
]
BackendOption = Annotated[
    str,
    typer.Option(help="What computes the kernel: auto, cpu, cuda or reference.", autocompletion=backend_names),
]
PrecisionOption = Annotated[
    str, typer.Option(help="Precision of the kernel up to the last pool: float32 or float64. The rest is float64.")
]
JobsOption = Annotated[int | None, typer.Option(help="Threads of the CPU; all cores by default.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Overwrite output files that exist.")]
OutputOption = Annotated[Path, typer.Option("--output", "-o", help="File to write.")]
ReportOption = Annotated[
    Path | None,
    typer.Option("--report", metavar="FILE", help="Also write an HTML report: one file, no network needed."),
]
SkipOption = Annotated[bool, typer.Option("--skip", help="Skip photographs that cannot be read, and list them.")]


def check_outputs(*places: Path | None, force: bool = True) -> None:
    """Raise if an output cannot be written, is named twice, or exists without `force`; before any computation."""
    from .files import check_output

    named = [place for place in places if place is not None]
    for number, place in enumerate(named):
        check_output(place, force=force, option="--force")
        if place.resolve() in [other.resolve() for other in named[:number]]:
            raise ParameterError(f"two outputs have the name {place}; choose another name for one of them")


def device_of(name: str, precision: str, jobs: int | None) -> Device:
    """The device that the options --backend, --precision and --jobs name."""
    from .devices import Device

    return Device(name, cast("Precision", precision), jobs)


def load_images(source: str, key: str | None) -> NDArray[Any]:
    """Images from a file; `key` names the array if the file is an .npz file."""
    from .files import load_array

    images = load_array(source, key)
    if images.ndim == 0:
        raise InputError(f"{source} holds one number, not images")
    return images


def symmetrized(base: Kernel, symmetry: str, mirrored: bool) -> Kernel:
    """The kernel with the symmetry that --symmetry and --mirrored name together, or the kernel itself without one.

    >>> from .kernel import kernel
    >>> symmetrized(kernel("myrtle5"), "shifts1", True), symmetrized(kernel("myrtle5"), "mirror", True)
    (kernel('myrtle5').symmetrized('mirror shifts1'), kernel('myrtle5').mirrored())
    """
    text = f"mirror {symmetry}".strip() if mirrored and "mirror" not in symmetry.split() else symmetry
    return base.symmetrized(text) if text else base
