"""Modules of a model on kernelmux's operators, `patch`, which swaps them into one that exists, and `check_model`.

Each module has the constructor, the parameters and the `state_dict` of torch's of the same name. Which backend runs it is
chosen per call as for any operator: `with kernelmux.use("triton"): model(x)`.
"""

from kernelmux.nn.activation import GELU, LogSoftmax, Softmax
from kernelmux.nn.attention import attention
from kernelmux.nn.checking import check_model
from kernelmux.nn.convolution import Conv2d
from kernelmux.nn.linear import Linear, SwiGLU
from kernelmux.nn.loss import CrossEntropyLoss
from kernelmux.nn.normalization import LayerNorm, RMSNorm
from kernelmux.nn.patching import Patch, patch
from kernelmux.nn.pooling import MaxPool2d
from kernelmux.nn.rotary import RotaryEmbedding

__all__ = [
    "GELU",
    "Conv2d",
    "CrossEntropyLoss",
    "LayerNorm",
    "Linear",
    "LogSoftmax",
    "MaxPool2d",
    "Patch",
    "RMSNorm",
    "RotaryEmbedding",
    "Softmax",
    "SwiGLU",
    "attention",
    "check_model",
    "patch",
]
