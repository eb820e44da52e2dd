"""The first files of an operator: `kernelmux new op` writes them from `templates/`, which is running code."""
