"""The packages that kernels are compiled and launched with: who brings them, and which versions are installed."""

from __future__ import annotations

from importlib import metadata

# Import name -> the distributions that may bring it; a wheel of CuPy is named after its CUDA.
PACKAGES = {
    "torch": ("torch",),
    "triton": ("triton",),
    "cupy": ("cupy-cuda13x", "cupy-cuda12x", "cupy"),
    "numpy": ("numpy",),
    "nvidia": ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12"),
}


def version(distribution: str) -> str:
    """The version of a distribution; "" if it is not installed, or tells none."""
    try:
        return metadata.version(distribution) or ""
    except metadata.PackageNotFoundError:
        return ""
