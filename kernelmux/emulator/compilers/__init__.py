"""NVRTC and Triton: from a source to PTX and cubins, what was launched, and what a compiled kernel costs."""
