"""Whether a chat template takes a message's content as a list of parts or as one string.

An engine finds out from the template's syntax tree and changes the messages accordingly, so the router has to come to
the same conclusion by the same walk (vLLM 0.32, renderers/hf.py): a template that loops over a message's content,
directly or through a macro's parameter, takes lists ("openai"), any other takes strings.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from jinja2 import nodes

ContentFormat = Literal["openai", "string"]


class _Unclear(Exception):
    """The walk met a target that is no plain name: the engine falls back to strings."""


def content_format(tree: nodes.Template) -> ContentFormat:
    """``openai`` if the template loops over content parts, else ``string``."""
    try:
        return "openai" if _loops_over_content(tree) else "string"
    except _Unclear:
        return "string"


def _loops_over_content(tree: nodes.Template) -> bool:
    messages = _message_names(tree)
    parameters: dict[int, set[str]] = {}
    in_macros: set[int] = set()
    for macro in tree.find_all(nodes.Macro):
        bound = _content_parameters(tree, macro, messages)
        for loop in macro.find_all(nodes.For):
            in_macros.add(id(loop))
            if bound:
                parameters[id(loop)] = bound
    for loop in tree.find_all(nodes.For):
        over = loop.iter.name if isinstance(loop.iter, nodes.Name) else None
        direct = any(_reads(loop.iter, name, "content") for name in messages)
        through_macro = over is not None and over in parameters.get(id(loop), ())
        by_name = over == "content" and id(loop) not in in_macros
        if direct or through_macro or by_name:
            _name(loop.target)
            return True
    return False


def _message_names(tree: nodes.Template) -> list[str]:
    """Names of the variables that hold one message."""
    lists = _aliases(tree, "messages")
    return [_name(loop.target) for loop in tree.find_all(nodes.For) if any(_reads(loop.iter, name) for name in lists)]


def _aliases(tree: nodes.Template, name: str) -> list[str]:
    """The name and those that are assigned from it."""
    found, waiting = [name], [name]
    while waiting:
        current = waiting.pop(0)
        for assign in tree.find_all(nodes.Assign):
            if not _reads(assign.node, current):
                continue
            target = _name(assign.target)
            if target not in found:
                found.append(target)
                waiting.append(target)
    return found


def _content_parameters(tree: nodes.Template, macro: nodes.Macro, messages: Iterable[str]) -> set[str]:
    """Parameters of a macro that are given a message's content somewhere."""
    names = [parameter.name for parameter in macro.args]
    bound: set[str] = set()
    for call in tree.find_all(nodes.Call):
        if not isinstance(call.node, nodes.Name) or call.node.name != macro.name:
            continue
        given = [*zip(names, call.args, strict=False)]
        given += [(keyword.key, keyword.value) for keyword in call.kwargs if keyword.key in names]
        bound |= {name for name, value in given if any(_reads(value, message, "content") for message in messages)}
    return bound


def _reads(node: nodes.Node | None, name: str, key: str | None = None) -> bool:
    """Whether an expression is the variable, or its ``key``, through filters, tests and slices."""
    if isinstance(node, nodes.Filter | nodes.Test):
        return node.node is not None and _reads(node.node, name, key)
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
        return _reads(node.node, name, key)
    if key is None:
        return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == name
    if isinstance(node, nodes.Getitem):
        return _reads_name(node.node, name) and isinstance(node.arg, nodes.Const) and node.arg.value == key
    return isinstance(node, nodes.Getattr) and _reads_name(node.node, name) and node.attr == key


def _reads_name(node: nodes.Node, name: str) -> bool:
    return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == name


def _name(target: nodes.Node) -> str:
    if not isinstance(target, nodes.Name):
        raise _Unclear
    return target.name
