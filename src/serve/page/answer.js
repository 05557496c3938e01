// One turn: what is asked of /v1/chat/completions and how its stream becomes a
// message. Knows no DOM.

import { post_stream } from './server.js';

const asked = (value) => value !== '' && value !== undefined && value !== null;

function wire_message(message) {
  const out = { role: message.role, content: message.content ?? '' };
  if (message.tool_call_id) out.tool_call_id = message.tool_call_id;
  if (message.reasoning) out.reasoning_content = message.reasoning;
  // Calls of an answer that was stopped are not whole.
  if (message.tool_calls?.length && message.numbers?.finish === 'tool_calls') {
    out.tool_calls = message.tool_calls.map((call) => ({
      id: call.id, type: 'function', function: { name: call.name, arguments: call.arguments },
    }));
  }
  return out;
}

// Throws a SyntaxError or TypeError when the tools are no JSON list.
export function parse_tools(text) {
  if (!asked(text?.trim())) return undefined;
  const tools = JSON.parse(text);
  if (!Array.isArray(tools)) throw new TypeError('not a list');
  return tools;
}

export function request_body(conversation, model) {
  const { settings, messages } = conversation;
  const system = asked(settings.system) ? [{ role: 'system', content: settings.system }] : [];
  const body = {
    model,
    messages: [...system, ...messages.map(wire_message)],
    stream: true,
    stream_options: { include_usage: true },
  };
  for (const name of ['temperature', 'top_p', 'max_tokens', 'seed']) {
    if (asked(settings[name])) body[name] = Number(settings[name]);
  }
  if (asked(settings.stop)) body.stop = settings.stop;
  if (settings.reasoning === 'off') body.thinking = { type: 'disabled' };
  else if (asked(settings.reasoning)) body.reasoning_effort = settings.reasoning;
  const tools = parse_tools(settings.tools);
  if (tools?.length) body.tools = tools;
  return body;
}

function take_calls(message, deltas) {
  for (const delta of deltas) {
    const index = delta.index ?? 0;
    const call = (message.tool_calls[index] ??= { id: '', name: '', arguments: '' });
    if (delta.id) call.id = delta.id;
    if (delta.function?.name) call.name = delta.function.name;
    call.arguments += delta.function?.arguments ?? '';
  }
}

function take_usage(numbers, usage) {
  numbers.prompt_tokens = usage.prompt_tokens ?? 0;
  numbers.cached_tokens =
    usage.prompt_cache_hit_tokens ?? usage.prompt_tokens_details?.cached_tokens ?? 0;
  numbers.replayed_tokens = usage.galley?.replayed_tokens ?? 0;
  numbers.miss = usage.galley?.cache_miss_reason ?? '';
  numbers.output_tokens = usage.completion_tokens ?? 0;
  numbers.reasoning_tokens = usage.completion_tokens_details?.reasoning_tokens ?? 0;
}

// Grows `message` and calls on_change after each event. Speed counts from the first
// token to the last: the wait for the first is told apart.
export async function stream_answer(body, message, signal, on_change) {
  const begun = performance.now();
  let first = null;
  let last = null;
  const numbers = (message.numbers = { pieces: 0 });
  for await (const event of post_stream('/v1/chat/completions', body, signal)) {
    const choice = event.choices?.[0];
    const delta = choice?.delta ?? {};
    if (delta.content || delta.reasoning_content || delta.tool_calls) {
      last = performance.now();
      first ??= last;
      numbers.first_ms ??= first - begun;
      numbers.pieces += 1;
      message.content += delta.content ?? '';
      message.reasoning += delta.reasoning_content ?? '';
      take_calls(message, delta.tool_calls ?? []);
    }
    if (choice?.finish_reason) numbers.finish = choice.finish_reason;
    if (event.usage) take_usage(numbers, event.usage);
    if (last > first) {
      const tokens = numbers.output_tokens ?? numbers.pieces;
      numbers.tokens_per_s = ((tokens - 1) * 1000) / (last - first);
    }
    on_change();
  }
}
