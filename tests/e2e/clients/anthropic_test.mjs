// The official Anthropic client, unmodified: whole and streamed messages, tools, token counts,
// errors.

import assert from 'node:assert/strict';
import { after, before, test as named_test } from 'node:test';
import { client_package, start_server } from './served.mjs';

const { default: Anthropic } = client_package('@anthropic-ai/sdk');
const test = (name, body) => named_test(name, { timeout: 120_000 }, body);

let server;
let client;
before(async () => {
  server = await start_server();
  client = new Anthropic({ baseURL: server.url, apiKey: 'none', maxRetries: 0 });
});
after(async () => assert.equal(await server.stop(), 0));

const ask = (content, more = {}) => ({
  model: 'nano', messages: [{ role: 'user', content }], temperature: 0, max_tokens: 60, ...more,
});
const unsigned = (content) => content.map(({ signature, id, ...rest }) => rest);

test('a stream joined is the whole message', async () => {
  const whole = await client.messages.create(ask('Tell me a story'));
  const streamed = await client.messages.stream(ask('Tell me a story')).finalMessage();
  assert.deepEqual(unsigned(streamed.content), unsigned(whole.content));
  assert.equal(streamed.stop_reason, whole.stop_reason);
  assert.equal(streamed.usage.output_tokens, whole.usage.output_tokens);
});

test('tools', async () => {
  const tools = [{
    name: 'get_weather',
    description: 'The weather in a city',
    input_schema: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
  }];
  const first = ask('What is the weather in Paris?', { tools, max_tokens: 200 });
  const answer = await client.messages.create(first);
  assert.equal(answer.stop_reason, 'tool_use');
  const use = answer.content.find((block) => block.type === 'tool_use');
  assert.equal(use.name, 'get_weather');
  assert.equal(typeof use.input.city, 'string');
  const next = await client.messages.create({
    ...first,
    messages: [...first.messages, { role: 'assistant', content: answer.content },
      { role: 'user', content: [{ type: 'tool_result', tool_use_id: use.id, content: 'rain' }] }],
  });
  assert.ok(next.content.length > 0);
});

test('counts what a message costs', async () => {
  const { max_tokens, temperature, ...rest } = ask('Hello');
  const counted = await client.messages.countTokens(rest);
  const answer = await client.messages.create(ask('Hello'));
  assert.equal(counted.input_tokens, answer.usage.input_tokens + answer.usage.cache_read_input_tokens);
});

test('errors', async () => {
  await assert.rejects(client.messages.create(ask('x', { model: 'gpt' })), Anthropic.NotFoundError);
  await assert.rejects(client.messages.create(ask('x', { temperature: -1 })), (error) => {
    assert.ok(error instanceof Anthropic.BadRequestError);
    assert.equal(error.error.error.type, 'invalid_request_error');
    return true;
  });
});
