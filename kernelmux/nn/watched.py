"""Whether a call of a module runs more than its own forward: where its work is done elsewhere, its hooks would not run."""

from __future__ import annotations

from typing import Any

import torch

from kernelmux.registry.observe.module_hooks import only_follow

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
everywhere: Any = torch.nn.modules.module._has_any_global_hook


def watched(module: torch.nn.Module) -> bool:
    """Whether a module has hooks or a forward of its own, or all have hooks; those that only follow do not count."""
    held = vars(module)
    return (
        "forward" in held or everywhere() or any(held[name] and not only_follow(held[name].values()) for name in HOOKS)
    )
