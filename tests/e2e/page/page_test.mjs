// The web page in a real browser against a server whose answers the test gives:
// chat, tools, keys, the kitchen, and what keyboard and screen reader need.

import assert from 'node:assert/strict';
import { after, before, beforeEach, test as named_test } from 'node:test';
import { find_barriers } from './accessibility.mjs';
import { open_browser, open_page } from './browser.mjs';
import { CannedServer, busy_kitchen } from './canned_server.mjs';

// Nothing here takes seconds; a hang ends as a failure.
const test = (name, body) => named_test(name, { timeout: 60_000 }, body);

const browser = await open_browser();
let server;
let page;
let faults;
let close;

before(async () => { server = await new CannedServer().listen(); });
after(async () => {
  await browser.close();
  server.close();
});
beforeEach(async () => {
  Object.assign(server, { kitchen: busy_kitchen(), key: '', admin_key: '', refusal: null });
  await close?.();
  ({ page, faults, close } = await open_page(browser, server.origin));
  await page.goto(server.origin);
});

async function send(text) {
  await page.fill('#prompt', text);
  await page.press('#prompt', 'Enter');
  return server.next_turn();
}
const last_answer = () => page.locator('.message.assistant').last();
const text_of = (selector) => page.locator(selector).innerText();
async function shows(locator, text) {
  await locator.filter({ hasText: text }).waitFor();
}

test('loads without errors and asks nobody else', async () => {
  await shows(page.locator('#model'), 'nano');
  await shows(page.locator('#pulse'), '3 running · 1 waiting');
  await page.click('#to-kitchen');
  await page.waitForSelector('.ticket');
  assert.deepEqual(faults, []);
});

test('an answer streams, with its numbers at the end', async () => {
  const turn = await send('Tell me');
  assert.deepEqual(turn.body.messages, [{ role: 'user', content: 'Tell me' }]);
  assert.equal(turn.body.model, 'nano');
  assert.equal(turn.body.stream_options.include_usage, true);
  turn.say('Once upon');
  await shows(last_answer(), 'Once upon');
  assert.equal(await last_answer().getAttribute('aria-busy'), 'true');
  turn.say(' a time 你好');
  await shows(last_answer(), 'Once upon a time 你好');
  turn.finish('stop', { prompt_tokens: 120, completion_tokens: 12, prompt_cache_hit_tokens: 96,
    galley: { replayed_tokens: 32, cache_miss_reason: 'token_differs' } });
  await shows(last_answer().locator('.meta'), /12 tokens · .*tokens\/s · first after .* · cache hit 96 of 120 \(80.0 %: then it differs\) · 32 replayed/);
  assert.equal(await last_answer().getAttribute('aria-busy'), 'false');
  await shows(page.locator('#announcer'), 'Once upon a time'); // told to a screen reader, once
  const second = await send('Go on');
  assert.deepEqual(second.body.messages.map(({ role }) => role), ['user', 'assistant', 'user']);
  second.finish();
  assert.deepEqual(faults, []);
});

test('what the model says is text, whatever it looks like', async () => {
  const turn = await send('Attack');
  const evil = '<img src=x onerror="document.title=1"><b>bold</b> [a](javascript:alert(1))';
  turn.say(`${evil}\n\`\`\`html\n<script>document.title=2</script>\n\`\`\`\nend`);
  turn.finish();
  await shows(last_answer(), 'end');
  assert.ok((await last_answer().innerText()).includes(evil));
  assert.equal(await last_answer().locator('img, b, script, .body a').count(), 0);
  assert.equal(await last_answer().locator('pre').innerText(), '<script>document.title=2</script>');
  assert.equal(await page.title(), 'Galley');
  assert.deepEqual(faults, []);
});

test('reasoning is folded and can be opened', async () => {
  const turn = await send('Think');
  turn.delta({ reasoning_content: 'First I think.' });
  await shows(last_answer(), 'Reasoning…');
  turn.say('Then I speak.');
  turn.finish('stop', { completion_tokens: 9, completion_tokens_details: { reasoning_tokens: 4 } });
  await shows(last_answer(), '4 of them reasoning');
  assert.equal(await last_answer().getByText('First I think.').isVisible(), false);
  await last_answer().locator('summary').click();
  assert.equal(await last_answer().getByText('First I think.').isVisible(), true);
});

for (const how of ['the button', 'Escape']) {
  test(`stop by ${how} ends the request and keeps the text`, async () => {
    const turn = await send('A long one');
    turn.say('It begins');
    await shows(last_answer(), 'It begins');
    if (how === 'Escape') await page.press('#prompt', 'Escape');
    else await page.click('#stop');
    await turn.left;
    assert.equal(turn.response.writableEnded, false); // cut by the page, not finished by us
    await shows(last_answer().locator('.meta'), 'stopped');
    assert.equal(await page.isVisible('#send'), true);
    assert.deepEqual(faults, []);
  });
}

test('regenerate asks again without the old answer', async () => {
  const turn = await send('Say a word');
  turn.say('one');
  turn.finish();
  await page.click('#regenerate');
  const again = await server.next_turn();
  assert.deepEqual(again.body.messages, [{ role: 'user', content: 'Say a word' }]);
  again.say('two');
  again.finish();
  await shows(last_answer(), 'two');
  assert.equal(await page.locator('.message').count(), 2);
});

test('tool calls are shown, and their results go back', async () => {
  const tools = [{ type: 'function', function: { name: 'weather', parameters: { type: 'object' } } }];
  await page.click('#settings > summary');
  await page.fill('[name=tools]', '{');
  await shows(page.locator('#tools-error'), 'no JSON list');
  await page.fill('[name=tools]', JSON.stringify(tools));
  const turn = await send('Weather?');
  assert.deepEqual(turn.body.tools, tools);
  turn.delta({ tool_calls: [{ index: 0, id: 'call-1', function: { name: 'weather', arguments: '{"pla' } }] });
  turn.delta({ tool_calls: [{ index: 0, function: { arguments: 'ce":"Paris"}' } }] });
  turn.finish('tool_calls');
  await shows(last_answer().locator('.call'), '"place": "Paris"');
  await page.getByLabel('Result of weather').fill('rain');
  await page.getByRole('button', { name: 'Send results' }).click();
  const { body: { messages } } = await server.next_turn();
  assert.equal(messages[1].tool_calls[0].function.arguments, '{"place":"Paris"}');
  assert.deepEqual(messages[2], { role: 'tool', content: 'rain', tool_call_id: 'call-1' });
});

test('settings reach the request, empty ones do not', async () => {
  await page.click('#settings > summary');
  await page.getByLabel('System message').fill('Be brief.');
  await page.getByLabel('Temperature').fill('0.2');
  await page.getByLabel('Most tokens').fill('7');
  await page.getByLabel('Reasoning').selectOption('off');
  const { body } = await send('Hi');
  assert.deepEqual(body.messages[0], { role: 'system', content: 'Be brief.' });
  assert.equal(body.temperature, 0.2);
  assert.equal(body.max_tokens, 7);
  assert.deepEqual(body.thinking, { type: 'disabled' });
  assert.ok(!('top_p' in body) && !('seed' in body) && !('stop' in body) && !('tools' in body));
});

test('conversations outlive a reload and can be deleted', async () => {
  (await send('The first one')).finish();
  await page.waitForSelector('#send:visible');
  await page.click('#conversation-new');
  (await send('The second one')).finish();
  await page.waitForSelector('#send:visible');
  await page.reload();
  assert.equal(await text_of('#chat-title'), 'The second one');
  await page.getByRole('button', { name: 'The first one', exact: true }).click();
  await shows(page.locator('.message.user'), 'The first one');
  await page.getByRole('button', { name: 'Delete: The first one' }).click();
  assert.equal(await text_of('#chat-title'), 'The second one');
  assert.equal(await page.locator('#conversations li').count(), 1);
});

test('a refusal is told and can be tried again', async () => {
  server.refusal = { status: 429, message: 'The limit of this key is 2 at once.' };
  await page.fill('#prompt', 'Hello');
  await page.press('#prompt', 'Enter');
  await shows(page.getByRole('alert'), 'The limit of this key is 2 at once.');
  assert.equal(await page.locator('.message.assistant').count(), 0);
  await page.getByRole('button', { name: 'Try again' }).click();
  const turn = await server.next_turn();
  turn.say('Hello to you');
  turn.event({ error: { message: 'The engine failed.' } });
  await shows(page.getByRole('alert'), 'The engine failed.');
  await shows(last_answer(), 'Hello to you'); // what came stays
});

test('keys: asked for, sent, forgotten with the tab; the kitchen wants the admin', async () => {
  Object.assign(server, { key: 'user-key', admin_key: 'admin-key' });
  await page.reload();
  await shows(page.getByRole('alert'), 'Give a key');
  const use = async (key) => {
    await page.click('#key-open');
    await page.getByLabel('Key', { exact: true }).fill(key);
    await page.keyboard.press('Enter');
  };
  await use('user-key');
  await shows(page.locator('#model'), 'nano');
  await page.click('#to-kitchen');
  await shows(page.locator('#kitchen-notice'), 'admin scope');
  assert.equal(await page.isVisible('.ticket'), false);
  await use('admin-key');
  await page.waitForSelector('.ticket');
  assert.ok(!(await page.evaluate(() => JSON.stringify(localStorage))).includes('-key'));
});

test('the kitchen shows who is where, the pages and the money', async () => {
  await page.click('#to-kitchen');
  await page.waitForSelector('.ticket');
  const phases = await page.locator('.ticket').evaluateAll((all) => all.map((one) => one.dataset.phase));
  assert.deepEqual(phases, ['decode', 'prefill', 'replay', 'waiting']);
  await shows(page.locator('.ticket').first(), 'out 50 / 200');
  assert.equal(await page.locator('#timeline rect').count(), 12);
  await shows(page.locator('#served tr'), 'req-gone');
  assert.match(await text_of('#served'), /1.0 s\s+2.0 s\s+7.0 s\s+400\s+0 %\s+123\s+stop/);
  await shows(page.locator('#tiers'), 'device: 512 pages of 16 tokens, 112 in use, 100 kept for reuse, 300 free');
  await shows(page.locator('#misses'), 'too short 3.');
  await shows(page.locator('#figures'), '25.0 %');
  await shows(page.locator('#figures'), '$0.0015'); // 10,000 tokens at 0.15 - 0.003 a million
  await page.getByLabel('Prompt, a million tokens').fill('100.003');
  await shows(page.locator('#figures'), '$1.00');

  // Two seconds later: 100 tokens more, one request done.
  const later = busy_kitchen();
  later.now_ms += 2000;
  later.totals.output_tokens += 100;
  later.tickets.shift();
  server.kitchen = later;
  await shows(page.locator('#figures'), '50.0 /s');
  assert.equal(await page.locator('.ticket').count(), 3);

  // Paused, it stands still and asks nothing.
  await page.click('#kitchen-pause');
  await page.waitForTimeout(600); // what was on its way has come
  server.kitchen = busy_kitchen();
  let asked = 0;
  page.on('request', () => { asked += 1; });
  await page.waitForTimeout(1200);
  assert.equal(asked, 0);
  await page.click('#kitchen-pause');
  await shows(page.locator('.ticket').first(), 'req-decode');
  assert.deepEqual(faults, []);
});

test('an answer cut off by a dead server is told', async () => {
  const turn = await send('Hello');
  turn.say('It was');
  await shows(last_answer(), 'It was');
  turn.response.destroy();
  await shows(page.getByRole('alert'), /\S/);
  assert.equal(await page.isVisible('#send'), true);
});

for (const [name, options] of Object.entries({
  'light': { colorScheme: 'light', viewport: { width: 1200, height: 800 } },
  'dark': { colorScheme: 'dark', viewport: { width: 1200, height: 800 } },
  'a phone': { viewport: { width: 320, height: 640 }, reducedMotion: 'reduce' },
})) {
  test(`no barriers: ${name}`, async () => {
    await close();
    ({ page, faults, close } = await open_page(browser, server.origin, options));
    await page.goto(server.origin);
    await shows(page.locator('#pulse'), 'running');
    assert.deepEqual(await find_barriers(page), []);

    // Everything that a conversation can hold: long words, code, reasoning, calls, an alert.
    await page.click('#settings > summary');
    const turn = await send('x'.repeat(300));
    turn.delta({ reasoning_content: 'Thinking.' });
    turn.say(`${'y'.repeat(300)}\n\`\`\`\n${'z'.repeat(300)}\n\`\`\``);
    await page.waitForSelector('.message pre');
    const moving = await page.evaluate(() => document.getAnimations().filter((one) => one.playState === 'running').length);
    assert.equal(moving > 0, options.reducedMotion === undefined); // the caret rests when asked to
    turn.delta({ tool_calls: [{ index: 0, id: 'c', function: { name: 'weather', arguments: '{}' } }] });
    turn.finish('tool_calls', { completion_tokens: 3, prompt_tokens: 9 });
    await page.waitForSelector('.results');
    await last_answer().locator('.reasoning summary').click();
    await page.fill('[name=tools]', '{');
    await page.waitForSelector('#tools-error:visible');
    if (await page.isVisible('#shelf-toggle')) await page.click('#shelf-toggle');
    assert.deepEqual(await find_barriers(page), []);

    await page.click('#to-kitchen');
    await page.waitForSelector('.ticket');
    assert.deepEqual(await find_barriers(page), []);
    assert.deepEqual(faults, []);
  });
}
