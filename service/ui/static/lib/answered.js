// The controls under an answer: make it again, go on from it in a new session, copy its request, see its context.
import {html} from './view.js';
import {apiAddress} from './addresses.js';
import {ask} from './api.js';
import {messages, POST, session} from './chat.js';
import {copy} from './copy.js';
import {t} from './words.js';

export {AnswerTokens} from './tokens.js';

export function Buttons({chat, item, chosen, onAgain, onBranch, onChoose}) {
  return html`<span class="row middle small">
    <button type="button" disabled=${chat.busy} onClick=${onAgain}>${t('chat.regenerate')}</button>
    ${!item.state && html`<button type="button" disabled=${chat.busy} onClick=${onBranch}>${t('chat.branch')}</button>`}
    <button type="button" onClick=${() => copy(curl(chat, item))}>${t('chat.curl')}</button>
    ${item.receipt && html`<button type="button" aria-pressed=${chosen ? 'true' : 'false'} onClick=${onChoose}>${t('chat.inspect')}</button>`}
  </span>`;
}

// Answers a question again. The last answer is replaced; an earlier one is, in a new session with the chat up to there.
// A stopped question is asked anew: the session does not have it.
export async function again(chat, item, options) {
  const question = chat.before(item);
  if (item.state && question.state) {
    const held = chat.items;
    chat.items = held.filter(each => each !== item && each !== question);
    return chat.send(question.text, options).catch(error => { chat.items = held; throw error; });
  }
  if (!item.state && item !== chat.last) await chat.open(await fork(chat, item));
  return replaceLast(chat, options);
}

// What is stopped or refused leaves the earlier answer.
async function replaceLast(chat, {model, policy, ...rest}) {
  const before = chat.items.filter(item => !item.state);
  const answer = chat.waiting(model);
  await chat.run([...before.slice(0, -1), answer], before, async signal => {
    await chat.settle({model, policy});
    await chat.stream(answer, session(chat.session.id, '/regenerate'), {stream: true, ...rest}, signal);
  });
  if (answer.state) chat.items = [...before, answer];
  chat.onChange();
}

// Returns the id of a new session with the messages up to this one.
export async function fork(chat, item) {
  const at = item.message ?? await idOf(chat, item);
  return (await ask(session(chat.session.id, '/fork'), POST({at}))).id;
}

// The server's id of a message that this page has sent: by its answer's id, else by its place.
async function idOf(chat, item) {
  const held = await messages(chat.session.id);
  const found = held.find(each => each.answer_id && each.answer_id === item.answer);
  return (found ?? held[chat.items.filter(each => !each.state).indexOf(item)])?.id;
}

// The request that made an answer; of one that this page did not ask for, made from what is stored. With a key set, the
// command names the variable that holds the key.
function curl(chat, item) {
  const asked = [{role: 'user', content: chat.before(item)?.text ?? ''}];
  const stored = {session_id: chat.session?.id, messages: asked, model: item.model, context: {policy: item.receipt?.policy}};
  const {path, body} = item.request ?? {path: 'generate_stream', body: stored};
  const key = document.querySelector('form[action$="sign-out"]') ? ` \\\n  -H "Authorization: Bearer $DOSIRAK_ADMIN_KEY"` : '';
  return `curl -N ${apiAddress(path).href} \\\n  -H 'Content-Type: application/json'${key} \\\n  -d '${JSON.stringify(body).replaceAll("'", "'\\''")}'`;
}
