"""Minimum by torch.amin."""

import torch

from kernelmux.backends.torch_ref._extremum import extremum_variant

VARIANTS = extremum_variant(torch.amin)
