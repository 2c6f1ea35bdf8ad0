// openai-node: chats, streams, tools in a loop, structured output, cancellation, retries and errors, told as JSON.
import OpenAI from 'openai';

const [url, plain] = process.argv.slice(2); // plain: without what needs a grammar, or a model that calls tools
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: 'none', maxRetries: 0 });
const chat = client.chat.completions;
const says = (content) => [{ role: 'user', content }];
const found = {};

found.models = (await client.models.list()).data.map((model) => model.id);
const hello = { model: 'demo', messages: says('안녕하세요'), temperature: 0, max_tokens: 200 };
const answer = await chat.create(hello);
found.chat = [answer.choices[0].message.content, answer.usage.completion_tokens];

let text = '';
let usage = null;
for await (const chunk of await chat.create({ ...hello, stream: true, stream_options: { include_usage: true } })) {
  text += chunk.choices[0]?.delta?.content ?? '';
  usage = chunk.usage ?? usage;
}
found.stream = [text, usage.completion_tokens];
found.helper = await chat.stream(hello).finalContent();

if (plain !== 'plain') {
  const schema = {
    type: 'object',
    properties: { menu: { enum: ['불고기 도시락', '비빔밥'] }, count: { type: 'integer' } },
    required: ['menu', 'count'],
    additionalProperties: false,
  };
  const order = await chat.parse({
    model: 'demo',
    messages: says('불고기 도시락 두 개'),
    response_format: { type: 'json_schema', json_schema: { name: 'order', strict: true, schema } },
  });
  found.structured = JSON.parse(order.choices[0].message.content);

  const asked = [];
  const runner = chat.runTools({
    model: 'demo',
    messages: says('비빔밥 얼마예요?'),
    tools: [
      {
        type: 'function',
        function: {
          name: 'price',
          parameters: { type: 'object', properties: { menu: { type: 'string' } }, required: ['menu'] },
          parse: JSON.parse,
          function: ({ menu }) => (asked.push(menu), '8,900원'),
        },
      },
    ],
  });
  found.tools = [await runner.finalContent(), ...asked];
}

const patient = client.withOptions({ maxRetries: 2 });
const again = await patient.chat.completions.create({ ...hello, messages: says('다시 안녕하세요') });
found.retried = again.choices[0].message.content;

const long = await chat.create({ ...hello, messages: says('길게'), stream: true });
for await (const _ of long) break; // leaving the loop closes the connection

found.errors = [];
for (const wrong of [{ messages: says('a'.repeat(9000)) }, { model: 'nope' }, { temperature: 9 }]) {
  try {
    await chat.create({ ...hello, ...wrong });
  } catch (error) {
    found.errors.push([error.constructor.name, error.code]);
  }
}
console.log(JSON.stringify(found));
