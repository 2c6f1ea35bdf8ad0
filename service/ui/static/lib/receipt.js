// The receipt of a chat, drawn: the window as a bar, its parts, every message with what became of it and why, and the
// text token by token.
import {html, useMemo, useState} from './view.js';
import {Table, Tag} from './parts.js';
import {PartsBar} from './parts-bar.js';
import {visible} from './visible.js';
import {known, number, t} from './words.js';

const KINDS = {kept: 'good', dropped: 'bad', summarised: 'warn', recalled: 'info'};
const MOST = 4000;

export function Receipt({receipt, items}) {
  return useMemo(() => html`
    <${Window} receipt=${receipt} />
    <${Messages} receipt=${receipt} items=${items} />
    ${receipt.rendered && html`<${Rendered} receipt=${receipt} />`}`, [receipt, items]);
}

function Window({receipt}) {
  const parts = Object.entries(receipt.parts).map(([name, value]) => ({name, value}));
  const rest = [{name: 'free', value: receipt.free}, {name: 'reserved', value: receipt.reserved_output}];
  const rows = [...parts, ...rest, {name: 'cached', value: receipt.cached_tokens}];
  const drawn = some => some.filter(part => part.value > 0).map(part => ({...part, kind: part.name, name: t(`part.${part.name}`)}));
  const name = t('context.window', {used: number(receipt.used), window: number(receipt.window)});
  return html`
    <h3>${name}</h3>
    <${PartsBar} name=${name} parts=${drawn([...parts, ...rest])} />
    ${receipt.cut && html`<p class="hint">${t('context.cut', {id: receipt.cut.at, count: number(receipt.cut.stable_for_tokens)})}</p>`}
    ${receipt.notes.map(note => html`<p key=${note} class="hint">${note}</p>`)}
    <h3>${t('context.parts')}</h3>
    ${receipt.used > 0 && html`<${PartsBar} name=${t('context.parts')} parts=${drawn(parts)} />`}
    <${Table} bare=${false} name=${t('context.parts')} columns=${PARTS} rows=${rows} keyOf=${row => row.name} />`;
}

const PARTS = [
  {label: t('context.part'), cell: row => html`<span class=${`swatch ${row.name}`} aria-hidden="true"></span>${t(`part.${row.name}`)}`},
  {label: t('context.tokens'), number: true, cell: row => number(row.value)},
];

function Messages({receipt, items}) {
  const rows = receipt.messages ?? listed(receipt, items);
  return html`<h3>${t('context.messages')}</h3>
    ${rows.length > 0 && html`<${Table} bare=${false} name=${t('context.messages')} columns=${MESSAGES} rows=${rows} />`}
    ${receipt.unlisted > 0 && html`<p class="hint">${t('context.unlisted', {count: number(receipt.unlisted)})}</p>`}
    ${!receipt.messages && html`<p class="hint">${t('context.stored')}</p>`}`;
}

const MESSAGES = [
  {label: t('context.id'), mono: true, cell: row => html`<span class="id" title=${row.id}>${row.id ?? '–'}</span>`},
  {label: t('context.role'), cell: row => known(`role.${row.role}`) ? t(`role.${row.role}`) : row.role},
  {label: t('context.tokens'), number: true, cell: row => row.tokens === undefined ? '–' : number(row.tokens)},
  {label: t('context.state'), cell: row => html`<${Tag} kind=${KINDS[row.state]}>${t(`state.${row.state}`)}<//>`},
  {label: t('context.why'), cell: row => html`<span class="hint">${row.why}</span>`},
];

// The messages of a stored receipt, which has no reasons, in the order of the chat.
function listed(receipt, items) {
  const places = new Map(items.map((item, at) => [item.message, at]));
  const recalled = new Set(receipt.recalled ?? []);
  const of = state => receipt[state].map(id => ({id, role: items[places.get(id)]?.role ?? id, state: recalled.has(id) ? 'recalled' : state}));
  return ['kept', 'dropped', 'summarised'].flatMap(of).sort((one, other) => (places.get(one.id) ?? -1) - (places.get(other.id) ?? -1));
}

function Rendered({receipt}) {
  const [most, setMost] = useState(MOST);
  const {rendered, messages} = receipt;
  const of = token => token.message === null ? t('context.template') : t(`state.${messages[token.message].state}`);
  return html`<details open class="rendered"><summary>${t('context.rendered')}</summary>
    <div class="token-text" tabindex="0" role="group" aria-label=${t('context.rendered')}>
      ${rendered.slice(0, most).map((token, at) => html`<span key=${at} class=${`token ${token.message === null ? 'own' : `m${token.message % 4}`}`} title=${`${token.id} · ${of(token)}`}>${visible(token.text)}</span>`)}
    </div>
    ${rendered.length > most && html`<button type="button" onClick=${() => setMost(most + MOST)}>${t('parts.more')}</button>`}
  </details>`;
}
