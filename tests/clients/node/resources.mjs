// openai-node beyond chat: responses, embeddings, files and batches, told as JSON.
import OpenAI, { toFile } from 'openai';

const [url] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: 'none', maxRetries: 0 });
const found = {};

const answer = await client.responses.create({ model: 'demo', input: '안녕하세요' });
found.response = [answer.output_text, answer.status, answer.usage.output_tokens];
const next = await client.responses.create({ model: 'demo', input: '두 번째', previous_response_id: answer.id });
const items = [];
for await (const item of client.responses.inputItems.list(next.id, { order: 'asc' })) items.push(item.content[0].text);
found.followed = [next.output_text, next.previous_response_id === answer.id, items];
found.kept = (await client.responses.retrieve(answer.id)).output_text;

const kinds = [];
const stream = client.responses.stream({ model: 'demo', input: '안녕하세요' });
for await (const event of stream) if (kinds.at(-1) !== event.type) kinds.push(event.type);
found.events = kinds;
found.streamed = (await stream.finalResponse()).output_text;

const properties = { menu: { enum: ['불고기 도시락', '비빔밥'] }, count: { type: 'integer' } };
const schema = { type: 'object', properties, required: ['menu', 'count'], additionalProperties: false };
const order = await client.responses.parse({
  model: 'demo',
  input: '불고기 도시락 두 개',
  text: { format: { type: 'json_schema', name: 'order', strict: true, schema } },
});
found.structured = order.output_parsed ?? JSON.parse(order.output_text);

const parameters = { type: 'object', properties: { menu: { type: 'string' } }, required: ['menu'] };
const tools = [{ type: 'function', name: 'price', strict: false, parameters }];
const input = [{ role: 'user', content: '비빔밥 얼마예요?' }];
const asked = await client.responses.create({ model: 'demo', input, tools });
const call = asked.output.find((item) => item.type === 'function_call');
input.push(...asked.output, { type: 'function_call_output', call_id: call.call_id, output: '8,900원' });
const told = await client.responses.create({ model: 'demo', input, tools });
found.tools = [call.name, JSON.parse(call.arguments), told.output_text];

await client.responses.delete(answer.id);
found.gone = await client.responses.retrieve(answer.id).catch((error) => error.constructor.name);

const texts = ['a lunch box', '도시락'];
const packed = (await client.embeddings.create({ model: 'demo', input: texts })).data; // asks for base64 by itself
const plain = (await client.embeddings.create({ model: 'demo', input: texts, encoding_format: 'float' })).data;
found.embeddings = packed.map(({ embedding }, at) => embedding.every((value, n) => value === plain[at].embedding[n]));
const short = await client.embeddings.create({ model: 'demo', input: texts, dimensions: 3 });
found.dimensions = short.data.map(({ embedding }) => embedding.length);

const line = (custom_id, content) => {
  const body = { model: 'demo', messages: [{ role: 'user', content }] };
  return JSON.stringify({ custom_id, method: 'POST', url: '/v1/chat/completions', body });
};
const lines = [line('첫째', '안녕하세요'), line('둘째', 'a'.repeat(9000))].join('\n');
const file = await client.files.create({ file: await toFile(Buffer.from(lines), '두.jsonl'), purpose: 'batch' });
const made = await client.batches.create({
  input_file_id: file.id,
  endpoint: '/v1/chat/completions',
  completion_window: '24h',
  metadata: { shop: 'lunch' },
});
let batch = made;
while (!['completed', 'failed', 'expired'].includes(batch.status)) {
  await new Promise((resolve) => setTimeout(resolve, 50));
  batch = await client.batches.retrieve(made.id);
}
const read = async (id) => {
  const content = await client.files.content(id);
  return (await content.text()).trim().split('\n').map((each) => JSON.parse(each));
};
found.batch = [batch.status, batch.metadata, batch.request_counts];
const [output] = await read(batch.output_file_id);
found.output = [output.custom_id, output.response.body.choices[0].message.content];
const [error] = await read(batch.error_file_id);
found.error = [error.custom_id, error.response.body.error.code];
const ids = [];
for await (const each of client.files.list()) ids.push(each.id);
found.files = ids.length;
found.filename = (await client.files.retrieve(file.id)).filename;
found.deleted = (await client.files.delete(file.id)).deleted;
found.batches = (await client.batches.list()).data.map((each) => each.id === made.id);
found.late = await client.batches.cancel(made.id).catch((error) => error.constructor.name);
console.log(JSON.stringify(found));
