"""Maximum by torch.amax."""

import torch

from kernelmux.backends.torch_ref._extremum import extremum_variant

VARIANTS = extremum_variant(torch.amax)
