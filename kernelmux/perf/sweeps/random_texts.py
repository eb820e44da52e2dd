"""The families of a random sweep, their operators, and the texts of each operator: axes of `random_shapes` in braces."""

FP8 = "a={rows}x{by16} b={by16}x{width}.mT"
ATTENDED = "k={batch}x{kv_heads}x{keys}x{depth} v={batch}x{kv_heads}x{keys}x{depth}"
ITSELF = "k={batch}x{kv_heads}x{queries}x{depth} v={batch}x{kv_heads}x{queries}x{depth}"
CACHE = "k={batch}x{kv_heads}x{cached}x{depth} v={batch}x{kv_heads}x{cached}x{depth}"
QUERIES = "q={batch}x{heads}x{queries}x{depth}"
SAVED = "y={batch}x{heads}x{queries}x{depth} lse={batch}x{heads}x{queries}"
GRADIENT = f"grad_out={QUERIES[2:]} {QUERIES}"
IMAGES, MAPS = "{images}x{in}x{high}x{wide}", "{images}x{out}x{out_high}x{out_wide}"
FILTERS, MOVES = "{out}x{in}x{window}x{window}", "stride={stride} padding={pad}"
PAGES = "{pages}x{kv_heads}x{slots}x{depth}"
X, LINE, GRADIENTS = "x={rows}x{columns}", "{rows}x{columns}", "grad_out={rows}x{columns}"
A, G = "{rows}x{width}", "grad_out={rows}x{width}"
LOGITS = "logits={rows}x{vocabulary} target={rows}"

FAMILIES: dict[str, dict[str, tuple[str, ...]]] = {
    "products": {
        "matmul": (
            "a={rows}x{hidden} b={hidden}x{width}.mT",
            "a={rows}x{hidden} b={hidden}x{width}",
            "a={any_a}x{any_b} b={any_b}x{any_c}",
            "a={batch}x{any_a}x{depth} b={batch}x{depth}x{any_b}",
        ),
        "linear": (
            "x={rows}x{hidden} weight={width}x{hidden} bias={width} activation={act}",
            "x={rows}x{hidden} weight={width}x{hidden}",
        ),
        "fp8_matmul": (
            FP8 + " scale_a=scalar scale_b=scalar accumulation={accumulation}",
            FP8 + " scale_a={rows}x1 scale_b=1x{width} accumulation={accumulation}",
            FP8 + " scale_a={rows}x{groups_a} scale_b={groups_a}x{groups_b}",
        ),
        "int8_matmul": (FP8, FP8 + " scale_a={rows}x1 scale_b=1x{width}"),
        "matvec": ("weight={width}x{hidden} x={few}x{hidden}",),
    },
    "attention": {
        "attention": (
            f"{QUERIES} {ITSELF} causal={{flag}}",
            f"{QUERIES} {ITSELF} causal=True window={{back}}",
            f"{QUERIES} {ATTENDED} causal={{flag}}",
            f"q={{batch}}x{{heads}}x{{few}}x{{depth}} {CACHE}",
        ),
        "attention_backward": (
            f"{GRADIENT} {ITSELF} {SAVED} causal={{flag}}",
            f"{GRADIENT} {ITSELF} {SAVED} causal=True window={{back}}",
            f"{GRADIENT} {ATTENDED} {SAVED} causal={{flag}}",
        ),
    },
    "paged": {
        "paged_attention": (
            f"q={{batch}}x{{heads}}x{{depth}} k_pages={PAGES} v_pages={PAGES}"
            " page_table={batch}x{table} lengths={batch}",
        ),
    },
    "rows": {
        "softmax": (X,),
        "log_softmax": (X,),
        "layer_norm": (X + " weight={columns} bias={columns}",),
        "rms_norm": (X + " weight={columns}",),
        "add_rms_norm": (f"{X} residual={LINE} weight={{columns}}",),
        "softmax_backward": (f"{GRADIENTS} y={LINE}",),
        "log_softmax_backward": (f"{GRADIENTS} y={LINE}",),
        "layer_norm_backward": (f"{GRADIENTS} {X} weight={{columns}}",),
        "rms_norm_backward": (f"{GRADIENTS} {X} weight={{columns}}",),
        "add_rms_norm_backward": (f"grad_y={LINE} grad_total={LINE} total={LINE} weight={{columns}}",),
        "cross_entropy": (LOGITS,),
        "cross_entropy_backward": (f"grad_loss=scalar {LOGITS} lse={{rows}} reduction={{reduction}}",),
        "cross_entropy_with_gradient": (LOGITS + " reduction={reduction}",),
        "quantize_rowwise": (X + " format={format}",),
    },
    "elementwise": {
        "add": (f"x={A} y={A}", "x={elements} y={elements}"),
        "square": (f"x={A}", "x={elements}"),
        "polynomial": (f"x={A} a=0.5 b=-1.0 c=1.0 d=0.5",),
        "silu": (f"x={A}", "x={elements}"),
        "gelu": (f"x={A} approximate={{approximate}}", "x={elements} approximate={approximate}"),
        "geglu": (f"a={A} b={A} approximate={{approximate}}",),
        "swiglu": (f"a={A} b={A}",),
        "silu_backward": (f"{G} x={A}",),
        "gelu_backward": (f"{G} x={A} approximate={{approximate}}",),
        "geglu_backward": (f"{G} a={A} b={A} approximate={{approximate}}",),
        "swiglu_backward": (f"{G} a={A} b={A}",),
        "rope": ("x={batch}x{heads}x{queries}x{depth} cos={queries}x{half} sin={queries}x{half} interleaved={flag}",),
    },
    "convolutions": {
        "conv2d": (
            f"x={IMAGES} weight={FILTERS} bias={{out}} {MOVES} dilation={{hole}} {{order}}",
            f"x={IMAGES} weight={FILTERS} {MOVES} dilation={{hole}} {{order}}",
        ),
        "conv2d_backward_input": (
            f"grad_out={MAPS} weight={FILTERS} {MOVES} dilation={{hole}}"
            " output_padding={rest_high}x{rest_wide} {order}",
        ),
        "conv2d_backward_weight": (
            f"grad_out={MAPS} x={IMAGES} kernel={{window}} {MOVES} dilation={{hole}} {{order}}",
        ),
        "max_pool2d": (f"x={IMAGES} kernel={{window}} {MOVES} {{order}}",),
        "max_pool2d_backward": (
            f"grad_out={MAPS} index={MAPS} size={{high}}x{{wide}} kernel={{window}} {MOVES} {{order}}",
        ),
    },
    "reductions": {name: (X + " axis={axis}",) for name in ("reduce_sum", "reduce_max", "reduce_min", "argmax")},
    "moving": {"transpose": (X,), "copy_column": ("x={rows}x{hidden} column={column}",)},
}
TEXTS = {op: texts for family in FAMILIES.values() for op, texts in family.items()}
FAMILY_OF = {op: name for name, family in FAMILIES.items() for op in family}
# Where a dtype needs other words: weights of 8 bits are given with their scales.
OF_TYPE = {("matvec", "i8"): ("weight={width}x{hidden}:i8 x={few}x{hidden}:bf16 scale={width}",)}
