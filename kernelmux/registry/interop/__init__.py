"""How torch meets a call: autograd, autocast, torch.ops, vmap, and the errors of its modes."""
