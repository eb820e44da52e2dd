"""Broken kernels that the suite must catch, each by the check it belongs to, and sound ones that it must pass.

A folder per family of defects, each a backend of its own (`mutants_<family>`) with a module per operator: `VARIANTS` as
everywhere, and `CAUGHT_BY`, which names the check of each broken variant; what is not in it is sound, however odd it
looks. `SHOWN_BY` names the case that shows a defect, where that is of a tier beyond ci. `ONLY_CPU` and `ONLY_CUDA` name
variants whose defect only the emulator, or only a GPU, can show.
"""
