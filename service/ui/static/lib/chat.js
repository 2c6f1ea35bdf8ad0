// A chat that the server keeps as a session: its messages, one turn after the other, streamed. It draws nothing.
import {ApiError, ask, events, query} from './api.js';
import {functionsOf} from './calls.js';
import {t} from './words.js';

export const POST = body => ({method: 'POST', body});
export const session = (id, rest = '') => `v1/sessions/${encodeURIComponent(id)}${rest}`;

const facts = event => ({
  text: event.generated_text, answer: event.id, model: event.model, finish: event.finish_reason, usage: event.usage,
  timings: event.timings, receipt: event.context, calls: event.tool_calls,
});
const stored = called => message => ({
  role: message.role, text: message.content, calls: message.tool_calls, called: called.get(message.tool_call_id), message: message.id, answer: message.answer_id, model: message.model,
  finish: message.finish_reason, usage: message.usage, receipt: message.context, tokens: [],
});

export async function messages(id) {
  const all = [];
  for (let cursor = ''; cursor !== null;) {
    const page = await ask(`${session(id, '/messages')}${query({cursor, limit: 100})}`);
    all.push(...page.data);
    cursor = page.next_cursor;
  }
  return all;
}

// An item is a message: {role, text, calls?, called?, message?, answer?, model, receipt, tokens, state}; `called` is the
// function whose result it is; `state` is '' for what the session holds, else 'waiting' or 'stopped'. `options` of a
// turn: {model, policy, parameters, context}.
export class Chat {
  items = [];
  session = null;
  ending = null;

  constructor(onChange) {
    this.onChange = onChange;
  }

  get busy() {
    return this.ending !== null;
  }

  // The last answer that the session holds.
  get last() {
    return this.items.findLast(item => item.role === 'assistant' && !item.state);
  }

  before(item) {
    return this.items[this.items.indexOf(item) - 1];
  }

  async open(id) {
    this.session = await ask(session(id));
    const all = await messages(id);
    this.items = all.map(stored(functionsOf(all)));
    this.onChange();
  }

  stop() {
    this.ending?.abort();
  }

  // Asks the next question. Throws what refuses it, and is then as it was before.
  async send(text, {model, policy, ...rest}) {
    const before = this.items;
    const question = {role: 'user', text, state: 'waiting'};
    const answer = this.waiting(model);
    await this.run([...before, question, answer], before, async signal => {
      await this.settle({model, policy});
      const body = {session_id: this.session.id, messages: [{role: 'user', content: text}], ...(model && {model}), stream: true, ...rest};
      await this.stream(answer, 'generate_stream', body, signal);
    });
  }

  // Streams an answer into `item`: text, tokens with their alternatives, and with the last event all facts.
  async stream(item, path, body, signal) {
    item.request = {path, body};
    for await (const event of events(path, {...POST(body), signal})) {
      if (event.error) throw new ApiError(event.error, event.code, event.request_id, event);
      const {token, top_tokens: top = []} = event;
      item.text += token.text;
      if (token.id !== null) item.tokens.push({...token, top});
      if (event.finish_reason) Object.assign(item, facts(event));
      this.soon();
    }
    if (!item.finish) throw new Error(t('chat.cut'));
  }

  waiting(model) {
    return {role: 'assistant', text: '', tokens: [], model, state: 'waiting'};
  }

  async run(items, before, work) {
    const isNew = this.session === null;
    this.ending = new AbortController();
    this.items = items;
    this.onChange();
    let state = '';
    try {
      await work(this.ending.signal);
    } catch (error) {
      state = 'stopped';
      if (error.name !== 'AbortError') {
        this.items = before;
        if (isNew) await this.#forget();
        throw error;
      }
      if (await this.#kept(before)) state = '';
    } finally {
      this.ending = null;
      items.filter(item => item.state === 'waiting').forEach(item => { item.state = state; });
      this.onChange();
    }
  }

  // Sees to it that the session exists and has this model and policy.
  async settle(wanted) {
    const {model, policy} = wanted;
    if (this.session === null) this.session = await ask('v1/sessions', POST({...(model && {model}), ...(policy && {policy})}));
    const changed = Object.fromEntries(Object.entries(wanted).filter(([name, value]) => value && value !== this.session[name]));
    if (Object.keys(changed).length) this.session = await ask(session(this.session.id), {method: 'PATCH', body: changed});
    this.onChange();
  }

  // The whole answer may have been there before the stop: then the session holds it.
  async #kept(before) {
    const held = this.session ? await messages(this.session.id).catch(() => []) : [];
    const known = before.findLast(item => item.role === 'assistant' && !item.state);
    if (!held.length || held.at(-1).answer_id === known?.answer) return false;
    this.items = held.map(stored(functionsOf(held)));
    return true;
  }

  // A refused first message leaves no empty session.
  async #forget() {
    const id = this.session?.id;
    this.session = null;
    if (id) await ask(session(id), {method: 'DELETE'}).catch(() => null);
  }

  // Draws at most 30 times a second, also where tokens come faster.
  soon() {
    this.timer ??= setTimeout(() => { this.timer = undefined; this.onChange(); }, 33);
  }
}
