// Talks to the server: the key, JSON requests, and streams of server-sent events.
// Knows no view. All paths are of this origin.

const KEY = 'galley.key';

export class ServerError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

export const api_key = () => sessionStorage.getItem(KEY) ?? '';

export function set_api_key(key) {
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
}

async function error_of(response) {
  let message = `${response.status} ${response.statusText}`.trim();
  try {
    const body = await response.json();
    message = body.error?.message ?? message;
  } catch { /* a body that is no JSON says nothing more */ }
  if (response.status === 401) message = `${message} Give a key with "API key" above.`;
  return new ServerError(message, response.status);
}

async function request(path, options = {}) {
  const headers = new Headers(options.headers);
  if (api_key()) headers.set('Authorization', `Bearer ${api_key()}`);
  let response;
  try {
    response = await fetch(path, { ...options, headers, cache: 'no-store' });
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new ServerError('The server does not answer. Is it still running?', 0);
  }
  if (!response.ok) throw await error_of(response);
  return response;
}

export async function get_json(path, signal) {
  return (await request(path, { signal })).json();
}

// Yields the data of each event of a stream, parsed.
export async function* post_stream(path, body, signal) {
  const response = await request(path, {
    method: 'POST',
    headers: { 'Content-Type': 'application/json' },
    body: JSON.stringify(body),
    signal,
  });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (rest + value).split('\n');
      rest = lines.pop();
      for (const line of lines) {
        if (!line.startsWith('data:')) continue; // comments keep the connection alive
        const data = line.slice(5).trim();
        if (data === '[DONE]') continue; // the end of the body follows: read it, or the connection breaks
        const event = JSON.parse(data);
        if (event.error) throw new ServerError(event.error.message ?? 'The answer failed.', 200);
        yield event;
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // of a body that ended or was aborted: nothing to give back
  }
}
