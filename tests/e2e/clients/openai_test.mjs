// The official openai client, unmodified, against a real server with the bundled model: whole
// and streamed answers, tools, parallel requests, abort, errors, responses and completions.

import assert from 'node:assert/strict';
import { after, before, test as named_test } from 'node:test';
import { client_package, eventually, start_server } from './served.mjs';

const { default: OpenAI } = client_package('openai');
const test = (name, body) => named_test(name, { timeout: 120_000 }, body);

let server;
let client;
before(async () => {
  server = await start_server();
  client = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: 'none', maxRetries: 0 });
});
after(async () => assert.equal(await server.stop(), 0));

const weather = {
  type: 'function',
  function: {
    name: 'get_weather',
    description: 'The weather in a city',
    parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
  },
};
const ask = (content, more = {}) => ({
  model: 'nano', messages: [{ role: 'user', content }], temperature: 0, max_tokens: 60, ...more,
});

async function joined(stream) {
  const whole = { content: '', reasoning: '', calls: [], usage: null, finish: null, roles: 0 };
  for await (const chunk of stream) {
    if (chunk.usage) {
      assert.deepEqual(chunk.choices, []);
      whole.usage = chunk.usage;
    }
    for (const choice of chunk.choices) {
      const { delta } = choice;
      whole.content += delta.content ?? '';
      whole.reasoning += delta.reasoning_content ?? '';
      whole.roles += delta.role ? 1 : 0;
      whole.finish = choice.finish_reason ?? whole.finish;
      for (const call of delta.tool_calls ?? []) {
        const known = (whole.calls[call.index] ??= { id: call.id, name: '', arguments: '' });
        known.name += call.function?.name ?? '';
        known.arguments += call.function?.arguments ?? '';
      }
    }
  }
  return whole;
}

test('models', async () => {
  const models = [];
  for await (const model of client.models.list()) models.push(model.id);
  assert.deepEqual(models, ['nano']);
  assert.equal((await client.models.retrieve('nano')).id, 'nano');
  await assert.rejects(client.models.retrieve('none'), OpenAI.NotFoundError);
});

test('a stream joined is the whole answer', async () => {
  for (const more of [{}, { thinking: { type: 'disabled' } }, { stop: ['a'] }]) {
    const whole = await client.chat.completions.create(ask('Tell me a story', more));
    const stream = await joined(await client.chat.completions.create(
      ask('Tell me a story', { ...more, stream: true, stream_options: { include_usage: true } })));
    const { message, finish_reason } = whole.choices[0];
    assert.equal(stream.content, message.content ?? '');
    assert.equal(stream.reasoning, message.reasoning_content ?? '');
    assert.equal(stream.finish, finish_reason);
    assert.equal(stream.roles, 1);
    assert.equal(stream.usage.completion_tokens, whole.usage.completion_tokens);
    assert.equal(stream.usage.prompt_tokens, whole.usage.prompt_tokens);
  }
});

test('tools: a call, its result, the next turn', async () => {
  const first = ask('What is the weather in Paris?', { tools: [weather], max_tokens: 200 });
  const whole = (await client.chat.completions.create(first)).choices[0];
  assert.equal(whole.finish_reason, 'tool_calls');
  const [call] = whole.message.tool_calls;
  assert.equal(call.function.name, 'get_weather');
  const streamed = await joined(await client.chat.completions.create({ ...first, stream: true }));
  assert.equal(streamed.finish, 'tool_calls');
  assert.equal(streamed.calls[0].name, 'get_weather');
  assert.deepEqual(JSON.parse(streamed.calls[0].arguments), JSON.parse(call.function.arguments));
  assert.notEqual(streamed.calls[0].id, call.id);
  const next = await client.chat.completions.create({
    ...first,
    messages: [...first.messages, whole.message,
      { role: 'tool', tool_call_id: call.id, content: '{"weather": "rain"}' }],
  });
  assert.ok(next.choices[0].message.content ?? next.choices[0].message.tool_calls);
  await assert.rejects(client.chat.completions.create({
    ...first, messages: [{ role: 'tool', tool_call_id: 'x', content: 'y' }],
  }), OpenAI.BadRequestError);
});

test('logprobs, n and seed', async () => {
  const more = { logprobs: true, top_logprobs: 2, n: 2, seed: 3, temperature: 1, max_tokens: 5 };
  const [a, b] = await Promise.all([0, 1].map(
    () => client.chat.completions.create(ask('Hello', more))));
  assert.deepEqual(a.choices, b.choices);
  assert.equal(a.choices.length, 2);
  for (const one of a.choices[0].logprobs.content) {
    assert.equal(one.top_logprobs.length, 2);
    assert.ok(one.logprob <= 0);
    assert.equal(Buffer.from(one.bytes).toString(), one.token);
  }
});

test('many at once get what each gets alone', async () => {
  const prompts = ['Tell me a story', 'Hello', 'What is the capital of France?', 'Good night'];
  const text = async (prompt) => {
    const answer = await client.chat.completions.create(ask(prompt, { max_tokens: 30 }));
    return JSON.stringify(answer.choices[0].message);
  };
  const alone = [];
  for (const prompt of prompts) alone.push(await text(prompt));
  const together = await Promise.all([...prompts, ...prompts, ...prompts, ...prompts].map(text));
  together.forEach((answer, i) => assert.equal(answer, alone[i % prompts.length]));
});

test('an abort ends the work', async () => {
  const stream = await client.chat.completions.create(
    ask('Tell me a story', { stream: true, max_tokens: 1500, logit_bias: { 1: -100 } }));
  for await (const chunk of stream) {
    assert.ok(chunk.id);
    break;
  }
  stream.controller.abort();
  await eventually(() => server.log().includes('finish=abort'), 'the abort in the log');
});

test('errors are the client\'s own kinds', async () => {
  const rejects = async (body, kind, words) => {
    let id;
    await assert.rejects(client.chat.completions.create(body), (error) => {
      assert.ok(error instanceof kind, `${error}`);
      assert.match(error.message, words);
      assert.ok(error.requestID);
      id = error.requestID;
      return true;
    });
    // The log comes by a pipe of its own.
    await eventually(() => server.log().includes(id), `${id} in the log`);
  };
  await rejects(ask('x', { model: 'gpt-9' }), OpenAI.NotFoundError, /gpt-9/);
  await rejects(ask('x', { temperature: -1 }), OpenAI.BadRequestError, /temperature/);
  await rejects(ask('word '.repeat(4000)), OpenAI.BadRequestError, /2048/);
  await rejects(ask('x', { response_format: { type: 'json_schema', json_schema: { name: 'a', schema: {} } } }),
    OpenAI.BadRequestError, /json_schema/);
});

test('completions and fill in the middle', async () => {
  const plain = await client.completions.create(
    { model: 'nano', prompt: ['Once upon', 'The dog'], max_tokens: 5, temperature: 0, echo: true });
  assert.equal(plain.choices.length, 2);
  assert.ok(plain.choices[1].text.startsWith('The dog'));
});

test('responses', async () => {
  const answer = await client.responses.create(
    { model: 'nano', input: 'Hello', max_output_tokens: 40, temperature: 0 });
  assert.equal(answer.object, 'response');
  let text = '';
  let last;
  for await (const event of await client.responses.create(
    { model: 'nano', input: 'Hello', max_output_tokens: 40, temperature: 0, stream: true })) {
    if (event.type === 'response.output_text.delta') text += event.delta;
    last = event;
  }
  assert.equal(text, answer.output_text);
  assert.ok(['response.completed', 'response.incomplete'].includes(last.type), last.type);
});
