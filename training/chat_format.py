"""Renders conversations as the released codec does, for training text and task prompts.

Covers what the data needs: roles, thinking, tools, response formats, tool results, tasks. It never
parses model output (tasks_check.py does) and never tokenises: special tokens are their strings.
"""

import json

from tokenizer import BOS, EOS

SYSTEM, USER, ASSISTANT = "<｜System｜>", "<｜User｜>", "<｜Assistant｜>"
THINK, END_THINK, DSML, REMINDER = "<think>", "</think>", "｜DSML｜", "<｜latest_reminder｜>"
IMAGE = "<｜deepseek_image｜>"

EFFORT = ("Reasoning Effort: {} (range 1-100, the higher the value, the more thorough the "
          "reasoning)\n\n")
EFFORT_NAMES = {"low": 50, "high": 75, "max": 100}

# Wire constants of the released format; chat_format_test.py pins their hashes.
FORMAT_HEAD = "## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n"
TOOLS_HEAD = """## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by \
writing a "<｜DSML｜ calls>" block like the following:

<｜DSML｜ calls>
<｜DSML｜ invoke name="$TOOL_NAME">
<｜DSML｜ parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜ parameter>
...
</｜DSML｜ invoke>
<｜DSML｜ invoke name="$TOOL_NAME2">
...
</｜DSML｜ invoke>
</｜DSML｜ calls>

String parameters should be specified as is and set `string="true"`. For all other types \
(numbers, booleans, arrays, objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning \
inside <think>...</think> BEFORE any tool calls or final response.

Otherwise, output directly after </think> with tool calls or final response.

### Available Tool Schemas

"""
TOOLS_TAIL = ("\n\nYou MUST strictly follow the above defined tool name and parameter schemas to "
              "invoke tool calls.\n")


def dumps(value):
    return json.dumps(value, ensure_ascii=False)


def _qualified(tool):
    """The function object with its namespace folded into its name."""
    function = dict(tool["function"])
    space = function.pop("namespace", None) or tool.get("namespace")
    if isinstance(space, dict):
        if space.get("description"):
            function["description"] = (
                space["description"] + "\n" + function.get("description", "")).rstrip("\n")
        space = space["name"]
    if space:
        function["name"] = f"{space}::{function['name']}"
    return function


def render_tools(tools):
    return TOOLS_HEAD + "\n".join(dumps(_qualified(tool)) for tool in tools) + TOOLS_TAIL


def render_calls(calls):
    """`calls` are {"name", "arguments"}; arguments a dict, or JSON text of one."""
    return (f"\n\n<{DSML} calls>\n" + "\n".join(_render_invoke(call) for call in calls)
            + f"\n</{DSML} calls>")


def _render_invoke(call):
    arguments = original = call["arguments"]
    for _ in range(2):  # Some clients encode twice.
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments)
            except ValueError:
                break
    if not isinstance(arguments, dict):
        arguments = {"arguments": original}
    parameters = []
    for name, value in arguments.items():
        is_text = isinstance(value, str)
        parameters.append(
            f'<{DSML} parameter name="{name}" string="{"true" if is_text else "false"}">'
            f"{value if is_text else dumps(value)}</{DSML} parameter>")
    return (f'<{DSML} invoke name="{call["name"]}">\n' + "\n".join(parameters)
            + f"\n</{DSML} invoke>")


def _block_text(content):
    if isinstance(content, str):
        return [content]
    texts = []
    for block in content:
        if block["type"] in ("image", "image_url"):
            texts.append(IMAGE)
        else:
            texts.append(block["text"] if block["type"] == "text" else "[Unsupported type]")
    return texts


def _merge_turns(messages):
    """Tool messages become blocks of user messages; neighbouring user messages become one."""
    turns, order = [], []
    for message in messages:
        role = message["role"]
        if role == "assistant":
            order = [call.get("id") for call in message.get("tool_calls", [])] or order
        if role not in ("user", "tool"):
            turns.append(message)
            continue
        if role == "tool":
            text = "\n\n".join(_block_text(message["content"]))
            id_ = message.get("tool_call_id")
            blocks = [(order.index(id_) if id_ in order else 0, text)]
        else:
            blocks = [(None, text) for text in _block_text(message["content"])]
        last = turns[-1] if turns else None
        if last and last["role"] == "user" and not last.get("task"):
            last["blocks"] += blocks
            last["task"] = message.get("task")
        else:
            turns.append({"role": "user", "blocks": blocks, "task": message.get("task")})
    for turn in turns:
        if turn["role"] == "user":
            turn["content"] = _join_blocks(turn.pop("blocks"))
    return turns


def _join_blocks(blocks):
    results = iter(sorted((b for b in blocks if b[0] is not None), key=lambda b: b[0]))
    return "\n\n".join(text if rank is None else f"<tool_result>{next(results)[1]}</tool_result>"
                       for rank, text in blocks)


def render(messages, thinking=False, effort="high", drop_thinking=True):
    """The prompt text of `messages`, BOS included, generation header included."""
    keep = not drop_thinking or any(m.get("tools") for m in messages)
    turns = _merge_turns(messages)
    user_like = [t["role"] == "user" or (t["role"] == "system" and i > 0)
                 for i, t in enumerate(turns)]
    last_user = max((i for i, is_user in enumerate(user_like) if is_user), default=-1)
    out = [BOS]
    for i, turn in enumerate(turns):
        role, content = turn["role"], turn.get("content") or ""
        if i == 0 and (thinking or role == "system"):
            out.append(SYSTEM)
            if thinking:
                out.append(EFFORT.format(EFFORT_NAMES.get(effort, effort)))
        if role == "system":
            out += ([SYSTEM] if i else []) + [content]
            if turn.get("tools"):
                out.append("\n\n" + render_tools(turn["tools"]))
            if turn.get("response_format"):
                out.append("\n\n" + FORMAT_HEAD + dumps(turn["response_format"]))
        elif role == "user":
            out.append(USER + content)
        elif role == "latest_reminder":
            out.append(REMINDER + content)
        elif role == "assistant":
            before_task = i > 0 and turns[i - 1].get("task")
            if thinking and not before_task and (keep or i > last_user):
                out.append((turn.get("reasoning_content") or "") + END_THINK)
            out.append(content)
            if turn.get("tool_calls"):
                out.append(render_calls(turn["tool_calls"]))
            if not turn.get("wo_eos"):
                out.append(EOS)
        else:
            raise ValueError(f"unknown role {role!r}")
        follower = turns[i + 1]["role"] if i + 1 < len(turns) else None
        if follower not in (None, "assistant", "latest_reminder"):
            continue
        task = turn.get("task")
        if task and task != "action":
            out.append(f"<｜{task}｜>")
        elif task:
            out.append(ASSISTANT + (THINK if thinking else END_THINK) + "<｜action｜>")
        elif user_like[i]:
            out.append(ASSISTANT)
            out.append(THINK if thinking and (keep or i >= last_user) else END_THINK)
    return "".join(out)
