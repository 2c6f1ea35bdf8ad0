// This script lets a reader of /docs try each operation. It talks to this server only, and keeps the key in memory only.

const WORDS = {
  en: { key: 'Key (kept in this page only)', send: 'Send', stop: 'Stop', body: 'Body', answer: 'Answer', failed: 'The request failed' },
  ko: { key: '키 (이 페이지에만 남습니다)', send: '보내기', stop: '멈추기', body: '본문', answer: '답', failed: '요청이 실패했습니다' },
};
const language = navigator.language.startsWith('ko') ? 'ko' : 'en';
const words = WORDS[language];
const root = new URL('.', document.location).href.replace(/\/$/, '');
const described = fetch(`${root}/openapi.json`).then((answer) => answer.json());
let key = '';

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

function labelled(text, input) {
  return element('label', { lang: language }, text, input);
}

function address(path, fields) {
  const query = new URLSearchParams();
  let filled = path;
  for (const { parameter, input } of fields) {
    if (parameter.in === 'path') filled = filled.replace(`{${parameter.name}}`, encodeURIComponent(input.value));
    else if (parameter.in === 'query' && input.value) query.set(parameter.name, input.value);
  }
  return `${root}${filled}${query.size ? `?${query}` : ''}`;
}

function headers(fields, body) {
  const sent = {};
  if (body) sent['Content-Type'] = 'application/json';
  if (key) sent.Authorization = `Bearer ${key}`;
  for (const { parameter, input } of fields) if (parameter.in === 'header' && input.value) sent[parameter.name] = input.value;
  return sent;
}

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

function curl(method, path, fields, body) {
  const told = { ...headers(fields, body) };
  if (key) told.Authorization = 'Bearer $DOSIRAK_ADMIN_KEY';
  const shown = Object.entries(told).map(([name, value]) => (value.includes('$') ? `-H "${name}: ${value}"` : `-H ${quoted(`${name}: ${value}`)}`));
  const data = body ? [`-d ${quoted(body)}`] : [];
  return ['curl -N', `-X ${method}`, quoted(address(path, fields)), ...shown, ...data].join(' ');
}

async function show(answer, output) {
  output.textContent = `${answer.status} ${answer.statusText}\n\n`;
  const reader = answer.body?.pipeThrough(new TextDecoderStream()).getReader();
  for (let part = await reader?.read(); part && !part.done; part = await reader.read()) output.textContent += part.value;
}

function form(method, path, operation) {
  const fields = (operation.parameters ?? []).map((parameter) => ({
    parameter, input: element('input', { required: parameter.required ?? false, autocomplete: 'off' }),
  }));
  const example = operation.requestBody?.content?.['application/json']?.example;
  const body = operation.requestBody && element('textarea', { rows: 6, spellcheck: false, value: example ? JSON.stringify(example, null, 2) : '' });
  const secret = element('input', { type: 'password', autocomplete: 'off', value: key });
  const command = element('pre', { tabIndex: 0 });
  const output = element('pre', { tabIndex: 0 });
  output.setAttribute('role', 'log');
  output.setAttribute('aria-label', words.answer);
  command.setAttribute('aria-label', 'curl');
  let running = null;
  const send = element('button', { textContent: words.send });
  const redraw = () => { command.textContent = curl(method, path, fields, body?.value); };
  const made = element('form', { lang: language },
    ...fields.map(({ parameter, input }) => labelled(`${parameter.name} (${parameter.in})`, input)),
    ...(body ? [labelled(words.body, body)] : []), labelled(words.key, secret), command, send, output);
  made.addEventListener('input', () => { key = secret.value; redraw(); });
  made.addEventListener('submit', async (event) => {
    event.preventDefault();
    if (running) return running.abort();
    running = new AbortController();
    send.textContent = words.stop;
    try {
      const request = { method, headers: headers(fields, body?.value), body: body?.value || undefined, signal: running.signal };
      await show(await fetch(address(path, fields), request), output);
    } catch (error) {
      if (error.name !== 'AbortError') output.textContent += `${words.failed}: ${error.message}`;
    }
    running = null;
    send.textContent = words.send;
  });
  redraw();
  return made;
}

for (const entry of document.querySelectorAll('details[data-path]')) {
  entry.addEventListener('toggle', async () => {
    if (!entry.open || entry.querySelector('form')) return;
    const { method, path } = entry.dataset;
    const operation = (await described).paths[path][method];
    if (!entry.querySelector('form')) entry.append(form(method.toUpperCase(), path, operation));
  });
}
