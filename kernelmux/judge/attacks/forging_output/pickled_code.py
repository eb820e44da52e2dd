"""The result is an object that runs code where it is unpickled: in the process of the judge, if outputs travel so.

The code it would run replaces built-in functions. An output is bytes in memory of known size; anything but a tensor is
refused by its type: "expected a torch.Tensor".
"""

OP = "square"
FUNCTION = "square"
FOUND = "expected a torch.Tensor|expected .*[Tt]ensor"
NEEDS = "cpu"
CODE = "import builtins; builtins.all = lambda items: True; builtins.any = lambda items: False"


class UnpickledCode:
    def __reduce__(self):
        return (exec, (CODE,))


def square(x):
    return UnpickledCode()
