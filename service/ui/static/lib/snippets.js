// The ways to use a version: requests and commands with its reference and this server's address, to copy.
import {html} from './view.js';
import {apiAddress} from './addresses.js';
import {copy} from './copy.js';
import {t} from './words.js';

export const base = apiAddress('').href.replace(/\/$/, '');

const snippets = reference => [
  ['curl', `curl ${base}/v1/chat/completions -H 'Content-Type: application/json' \\
  -d '{"model": "${reference}", "messages": [{"role": "user", "content": "${t('use.hello')}"}]}'`],
  ['openai', `from openai import OpenAI

client = OpenAI(base_url="${base}/v1", api_key="unused")
answer = client.chat.completions.create(
    model="${reference}", messages=[{"role": "user", "content": "${t('use.hello')}"}]
)
print(answer.choices[0].message.content)`],
  ['bentoml', `import bentoml

client = bentoml.SyncHTTPClient("${base}")
print(client.chat(messages=[{"role": "user", "content": "${t('use.hello')}"}], model="${reference}"))`],
  ['docker', `docker run --rm -p 3000:3000 -v dosirak:/data \\
  -e DOSIRAK_DEFAULT_MODEL=${reference} -e DOSIRAK_ADMIN_KEY dosirak`],
];

export function Snippets({reference}) {
  return snippets(reference).map(([name, text]) => html`<div class="snippet" key=${name}>
    <h3>${name}</h3><pre><code>${text}</code></pre>
    <button type="button" class="quiet" onClick=${() => copy(text)}>${t('use.copy', {name})}</button>
  </div>`);
}
