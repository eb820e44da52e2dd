# Written by `nox -s docs` from the specs and the sources.

# By folder: the operators whose files those of an operator read.
USES = {
    "kernelmux/backends/cuda": {
        "add_rms_norm_backward": [
            "reduce_sum"
        ],
        "attention": [
            "reduce_sum"
        ],
        "attention_backward": [
            "attention"
        ],
        "conv2d": [
            "matmul"
        ],
        "conv2d_backward_input": [
            "conv2d"
        ],
        "conv2d_backward_weight": [
            "conv2d"
        ],
        "cross_entropy_backward": [
            "cross_entropy"
        ],
        "cross_entropy_with_gradient": [
            "cross_entropy"
        ],
        "fp8_matmul": [
            "matmul"
        ],
        "int8_matmul": [
            "fp8_matmul"
        ],
        "layer_norm_backward": [
            "reduce_sum"
        ],
        "linear": [
            "matmul"
        ],
        "matmul": [
            "reduce_sum",
            "transpose"
        ],
        "matvec": [
            "matmul"
        ],
        "paged_attention": [
            "attention"
        ],
        "rms_norm_backward": [
            "reduce_sum"
        ]
    },
    "kernelmux/backends/torch_ref": {
        "add_rms_norm_backward": [
            "rms_norm_backward"
        ],
        "attention": [
            "matmul"
        ],
        "attention_backward": [
            "attention"
        ],
        "conv2d_backward_input": [
            "conv2d"
        ],
        "conv2d_backward_weight": [
            "conv2d"
        ],
        "cross_entropy_with_gradient": [
            "cross_entropy",
            "cross_entropy_backward"
        ],
        "linear": [
            "matmul"
        ],
        "matvec": [
            "matmul"
        ]
    },
    "kernelmux/backends/triton": {
        "add_rms_norm": [
            "rms_norm"
        ],
        "add_rms_norm_backward": [
            "rms_norm_backward"
        ],
        "attention_backward": [
            "attention"
        ],
        "conv2d": [
            "matmul"
        ],
        "conv2d_backward_input": [
            "conv2d"
        ],
        "conv2d_backward_weight": [
            "conv2d"
        ],
        "cross_entropy_with_gradient": [
            "cross_entropy"
        ],
        "fp8_matmul": [
            "matmul"
        ],
        "int8_matmul": [
            "matmul"
        ],
        "linear": [
            "matmul"
        ],
        "matmul": [
            "transpose"
        ],
        "matvec": [
            "matmul"
        ],
        "max_pool2d_backward": [
            "max_pool2d"
        ],
        "paged_attention": [
            "attention"
        ]
    },
    "kernelmux/registry/ops": {
        "add_rms_norm": [
            "rms_norm"
        ],
        "add_rms_norm_backward": [
            "rms_norm_backward"
        ],
        "argmax": [
            "reduce_max"
        ],
        "attention": [
            "matmul"
        ],
        "attention_backward": [
            "attention"
        ],
        "conv2d_backward_input": [
            "conv2d"
        ],
        "conv2d_backward_weight": [
            "conv2d"
        ],
        "cross_entropy_backward": [
            "cross_entropy"
        ],
        "cross_entropy_with_gradient": [
            "cross_entropy_backward"
        ],
        "geglu": [
            "gelu_backward"
        ],
        "geglu_backward": [
            "geglu"
        ],
        "gelu_backward": [
            "gelu"
        ],
        "layer_norm_backward": [
            "layer_norm"
        ],
        "linear": [
            "gelu",
            "matmul",
            "silu"
        ],
        "max_pool2d_backward": [
            "max_pool2d"
        ],
        "paged_attention": [
            "attention"
        ],
        "reduce_max": [
            "reduce_sum"
        ],
        "reduce_min": [
            "reduce_max"
        ],
        "rms_norm_backward": [
            "rms_norm"
        ],
        "silu_backward": [
            "silu"
        ],
        "softmax_backward": [
            "softmax"
        ],
        "swiglu": [
            "silu"
        ],
        "swiglu_backward": [
            "silu_backward"
        ]
    }
}

# Operators that the gradients of others are composed of.
GRADIENTS = {
    "conv2d": [
        "conv2d_backward_input",
        "conv2d_backward_weight",
        "reduce_sum"
    ],
    "conv2d_backward_input": [
        "conv2d",
        "conv2d_backward_weight"
    ],
    "conv2d_backward_weight": [
        "conv2d",
        "conv2d_backward_input"
    ],
    "linear": [
        "gelu_backward",
        "matmul",
        "reduce_sum",
        "silu_backward"
    ],
    "max_pool2d": [
        "max_pool2d_backward"
    ],
    "reduce_max": [
        "reduce_sum"
    ],
    "reduce_min": [
        "reduce_sum"
    ]
}
