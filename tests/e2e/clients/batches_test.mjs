// Files and batches with the official OpenAI client: a batch from its upload to its output, the
// same answers as when asked one by one, lists, and what is refused.

import assert from 'node:assert/strict';
import { File } from 'node:buffer';
import { after, before, test as named_test } from 'node:test';
import { client_package, start_server } from './served.mjs';

globalThis.File ??= File; // Debian's Node.js 18 has it, but not as a global

const { default: OpenAI, toFile } = client_package('openai');
const test = (name, body) => named_test(name, { timeout: 120_000 }, body);

let server;
let client;
before(async () => {
  server = await start_server();
  client = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: 'none', maxRetries: 0 });
});
after(async () => assert.equal(await server.stop(), 0));

const body_of = (number) => ({
  model: 'nano', messages: [{ role: 'user', content: `Tell me ${number}` }], temperature: 0, max_tokens: 20,
});
const line = (number, more = {}) => JSON.stringify({
  custom_id: `line ${number}`, method: 'POST', url: '/v1/chat/completions',
  body: { ...body_of(number), ...more },
});

async function upload(lines) {
  return client.files.create({
    file: await toFile(Buffer.from(lines.join('\n')), 'in.jsonl'), purpose: 'batch',
  });
}

async function run(lines) {
  const file = await upload(lines);
  let batch = await client.batches.create({
    input_file_id: file.id, endpoint: '/v1/chat/completions', completion_window: '24h',
    metadata: { run: 'first' },
  });
  while (!['completed', 'failed'].includes(batch.status)) {
    await new Promise((then) => setTimeout(then, 50));
    batch = await client.batches.retrieve(batch.id);
  }
  return batch;
}

async function lines_of(file_id) {
  const text = await (await client.files.content(file_id)).text();
  return text.trim().split('\n').map((each) => JSON.parse(each));
}

test('a batch answers as single requests do', async () => {
  const batch = await run([line(1), line(2, { model: 'gpt' }), line(3)]);
  assert.equal(batch.status, 'completed');
  assert.deepEqual(batch.request_counts, { total: 3, completed: 2, failed: 1 });
  assert.deepEqual(batch.metadata, { run: 'first' });
  const answers = new Map((await lines_of(batch.output_file_id)).map((each) => [each.custom_id, each]));
  for (const number of [1, 3]) {
    const { response } = answers.get(`line ${number}`);
    assert.equal(response.status_code, 200);
    const alone = await client.chat.completions.create(body_of(number));
    assert.deepEqual(response.body.choices, alone.choices);
  }
  const [wrong] = await lines_of(batch.error_file_id);
  assert.equal(wrong.custom_id, 'line 2');
  assert.equal(wrong.response.body.error.code, 'model_not_found');
});

test('a wrong line fails the batch before it runs', async () => {
  const batch = await run([line(1), '{']);
  assert.equal(batch.status, 'failed');
  assert.equal(batch.errors.data[0].line, 2);
  await assert.rejects(client.batches.cancel(batch.id), OpenAI.BadRequestError);
});

test('files are listed, read and deleted', async () => {
  const file = await upload([line(1)]);
  const seen = [];
  for await (const each of client.files.list({ limit: 2 })) seen.push(each.id);
  assert.equal(seen[0], file.id);
  assert.equal(new Set(seen).size, seen.length);
  assert.equal(await (await client.files.content(file.id)).text(), line(1));
  assert.ok((await client.files.delete(file.id)).deleted);
  await assert.rejects(client.files.retrieve(file.id), OpenAI.NotFoundError);
  await assert.rejects(
    client.files.create({ file: await toFile(Buffer.from('x'), 'x'), purpose: 'fine-tune' }),
    OpenAI.BadRequestError);
});
