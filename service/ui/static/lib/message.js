// One stored message: who said it, its text, the receipt of an answer in short, and what can be done with it. The module
// asks nothing of the API: its callers do.
import {html, useEffect, useId, useRef, useState} from './view.js';
import {pageOfReference} from './addresses.js';
import {Calls} from './calls.js';
import {Tag} from './parts.js';
import {number, t, time} from './words.js';

// `name` is a text, or a link's text with its page. `onSave(text)` answers whether the text was stored.
export function Article({name, page, text, calls = [], at, tags, receipt, kind, onSave, children}) {
  const [base, setBase] = useState(null);
  const id = useId();
  const button = useRef();
  const leave = () => { setBase(null); setTimeout(() => button.current?.focus()); };
  return html`<article class=${`stored card ${kind}`} aria-labelledby=${id}>
    <header><h2 id=${id}>${page ? html`<a href=${page}>${name}</a>` : name}</h2>
      ${at && html`<time class="hint" datetime=${at}>${time(at)}</time>`}${tags}
      ${base === null && html`<div class="acts">
        <button type="button" class="quiet" ref=${button} onClick=${() => setBase(text)}>${t('session.edit')}</button>${children}</div>`}</header>
    ${base === null ? (text || !calls.length) && html`<div class="words">${text}</div>`
      : html`<${Editor} base=${base} stored=${text} onLeave=${leave} onSave=${onSave} />`}
    <${Calls} calls=${calls} />
    ${receipt}
  </article>`;
}

// A text that another page has changed meanwhile is shown below the one that is written here.
function Editor({base, stored, onLeave, onSave}) {
  const [draft, setDraft] = useState(base);
  const box = useRef();
  useEffect(() => box.current.focus(), []);
  const submit = async event => {
    event.preventDefault();
    if (await onSave(draft)) onLeave();
  };
  return html`<form onSubmit=${submit}>
    <label>${t('session.text')}<textarea ref=${box} rows=${Math.min(16, draft.split('\n').length + 2)} value=${draft} onInput=${event => setDraft(event.target.value)}></textarea></label>
    ${stored !== base && html`<p class="hint">${t('session.stored_now')}</p><div class="words">${stored}</div>`}
    <div class="row middle"><button class="main">${t('session.save')}</button>
      <button type="button" onClick=${onLeave}>${t('parts.cancel')}</button></div>
  </form>`;
}

const NAMES = {user: t('session.you'), assistant: t('session.assistant'), system: t('session.system'), tool: t('message.result')};

// `called` is the function whose result the message is.
export function Message({message, called, onEdit, onPin, onFork}) {
  const {pinned, model, finish_reason: ended} = message;
  return html`<${Article} name=${model ?? NAMES[message.role] ?? message.role} page=${model && pageOfReference(model)} kind=${message.role}
    text=${message.content} calls=${message.tool_calls} at=${message.created_at} onSave=${onEdit} receipt=${message.context && html`<${Receipt} receipt=${message.context} usage=${message.usage} />`}
    tags=${html`${called && html`<${Tag}>${called}<//>`}${message.name && html`<${Tag}>${message.name}<//>`}${pinned && html`<${Tag} kind="good">${t('session.pinned')}<//>`}
      ${ended && ended !== 'stop' && html`<${Tag} kind="warn">${t(`ended.${ended}`)}<//>`}`}>
    <button type="button" class="quiet" onClick=${onPin}>${pinned ? t('session.unpin') : t('session.pin')}</button>
    <button type="button" class="quiet" onClick=${onFork}>${t('session.fork')}</button>
  <//>`;
}

// What the model received of the chat, in one line.
function Receipt({receipt, usage}) {
  const {counts} = receipt;
  const told = [
    t('receipt.policy', {policy: receipt.policy}),
    t('receipt.used', {used: number(receipt.used), window: number(receipt.window)}),
    t('receipt.kept', {count: number(counts.kept)}), t('receipt.dropped', {count: number(counts.dropped)}),
    counts.summarised > 0 && t('receipt.summarised', {count: number(counts.summarised)}),
    receipt.recalled?.length > 0 && t('receipt.recalled', {count: number(receipt.recalled.length)}),
    usage && t('receipt.answer', {count: number(usage.completion_tokens)}),
  ];
  return html`<ul class="receipt hint">${told.filter(Boolean).map(line => html`<li key=${line}>${line}</li>`)}</ul>
    ${receipt.notes.map(note => html`<p class="hint" key=${note}>${note}</p>`)}`;
}
