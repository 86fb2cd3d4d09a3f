"""The docstrings below the fields of settings classes.

`use_attribute_docstrings` of pydantic would read all sources whenever a service starts.
"""

import ast
import inspect
from collections.abc import Iterator
from itertools import pairwise


def field_docstrings(cls: type) -> Iterator[tuple[str, str]]:
    """Yield the fields of a class, those of its bases first, with their docstrings."""
    for base in reversed(cls.__mro__):
        if "__annotations__" not in vars(base) or base.__module__.startswith("pydantic"):
            continue
        (definition,) = ast.parse(inspect.getsource(base)).body
        for field, text in pairwise(getattr(definition, "body", ())):
            match field, text:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(docstring))),
                ):
                    yield name, inspect.cleandoc(docstring)
