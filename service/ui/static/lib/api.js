// Requests to the public API. An answer that is no success becomes an ApiError with the API's own sentence.
import {apiAddress} from './addresses.js';

export class ApiError extends Error {
  constructor(message, status, requestId, body = {}) {
    super(message);
    Object.assign(this, {status, requestId, body});
  }
}

// The response of a request that went well. `body` is sent as JSON; `signal` ends the request.
export async function send(path, {method = 'GET', body, headers = {}, signal} = {}) {
  const told = body === undefined ? {} : {'Content-Type': 'application/json'};
  const response = await fetch(apiAddress(path), {
    method, signal, headers: {Accept: 'application/json', ...told, ...headers},
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  if (!response.ok) throw await refusal(response);
  return response;
}

// The JSON of an answer.
export async function ask(path, options) {
  const response = await send(path, options);
  return response.status === 204 ? null : response.json();
}

// The JSON of an answer with its ETag, for a change that must not overwrite another.
export async function askTagged(path, options) {
  const response = await send(path, options);
  return {data: await response.json(), tag: response.headers.get('ETag')};
}

// The data of each server-sent event of an answer, parsed as JSON; ends at "[DONE]".
export async function* events(path, options = {}) {
  const response = await send(path, {...options, headers: {Accept: 'text/event-stream', ...options.headers}});
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const {value, done} = await reader.read();
    if (done) return;
    const blocks = (rest + value).split(/\r?\n\r?\n/);
    rest = blocks.pop();
    for (const block of blocks) {
      const data = block.split(/\r?\n/).filter(line => line.startsWith('data:')).map(line => line.slice(5).trim()).join('\n');
      if (data === '[DONE]') return;
      if (data) yield JSON.parse(data);
    }
  }
}

// A query string of what is set.
export function query(values) {
  const kept = Object.entries(values).filter(([, value]) => value !== '' && value !== null && value !== undefined);
  return kept.length ? `?${new URLSearchParams(kept)}` : '';
}

async function refusal(response) {
  if (response.status === 401) location.reload();  // the cookie has ended: the same address asks for the key
  const body = await response.json().catch(() => ({}));
  const told = typeof body.error === 'object' ? body.error?.message : body.error;
  return new ApiError(told || response.statusText, response.status, response.headers.get('X-Request-Id'), body);
}
