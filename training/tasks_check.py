"""Judges what a model wrote for one case of training/tasks/*.jsonl.

The rules stand in tasks/README.md; `galley eval --task` follows the same ones. Works on text alone
and knows nothing of how it was generated.
"""

import json
import re

from chat_format import DSML, END_THINK
from tokenizer import EOS

_INVOKE = re.compile(
    rf'<{DSML} invoke name="(?P<name>[^"\n]+)">\n(?P<body>.*?)\n</{DSML} invoke>', re.DOTALL)
_PARAMETER = re.compile(
    rf'<{DSML} parameter name="(?P<key>[^"\n]+)" string="(?P<text>true|false)">'
    rf"(?P<value>.*?)</{DSML} parameter>", re.DOTALL)
_OPEN, _CLOSE = f"\n\n<{DSML} calls>\n", f"\n</{DSML} calls>"


def parse_calls(output):
    """[(name, arguments)] of the one block that must end `output`; None if it is not well-formed."""
    content, opened, block = output.partition(_OPEN)
    if not opened or DSML in content or not block.endswith(_CLOSE):
        return None
    block = block[:-len(_CLOSE)]
    calls, at = [], 0
    while True:
        invoke = _INVOKE.match(block, at)
        if not invoke:
            return None
        arguments = _parse_parameters(invoke["body"])
        if arguments is None:
            return None
        calls.append((invoke["name"], arguments))
        at = invoke.end()
        if at == len(block):
            return calls
        if block[at] != "\n":
            return None
        at += 1


def _parse_parameters(body):
    arguments, at = {}, 0
    while body:
        parameter = _PARAMETER.match(body, at)
        if not parameter or parameter["key"] in arguments or DSML in parameter["value"]:
            return None
        value = parameter["value"]
        if parameter["text"] == "false":
            try:
                value = json.loads(value)
            except ValueError:
                return None
        arguments[parameter["key"]] = value
        at = parameter.end()
        if at == len(body):
            break
        if body[at] != "\n":
            return None
        at += 1
    return arguments


def _same(one, other):
    """Equality that tells true from 1 and 1 from "1", but not 1 from 1.0."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[k], other[k]) for k in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return one == other


def check(case, output):
    """{"passed": bool} and, where form and content are told apart, {"well_formed": bool}.

    `output` is the generated text, special-token strings included, with or without the last EOS.
    """
    rule = case["check"]
    kind, wanted = rule["kind"], rule["value"]
    ended = output.endswith(EOS)
    output = output[:-len(EOS)] if ended else output
    if case["prompt"].endswith("<think>"):
        _, closed, output = output.partition(END_THINK)
        if not closed:
            output = ""
    if kind == "exact":
        return {"passed": output.strip() == wanted}
    if kind == "contains":
        return {"passed": wanted in output}
    if kind == "json":
        try:
            value = json.loads(output)
        except ValueError:
            return {"passed": False, "well_formed": False}
        return {"passed": _same(value, wanted), "well_formed": isinstance(value, dict)}
    if kind == "tool_call":
        calls = parse_calls(output)
        wanted = [(call["name"], call["arguments"]) for call in wanted]
        return {"passed": calls is not None and len(calls) == len(wanted) and all(
                    one[0] == other[0] and _same(one[1], other[1])
                    for one, other in zip(calls, wanted)),
                "well_formed": calls is not None}
    raise ValueError(f"unknown check {kind!r}")
