"""What no judged trial has run: ways of the conditions of launchers, basic blocks of kernels."""
