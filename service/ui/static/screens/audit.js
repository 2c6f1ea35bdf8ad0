// The rows of the audit, newest first: who changed what, when and from where. Nothing here changes anything.
import {html, useEffect, useState} from '../lib/view.js';
import {attempt, say} from '../lib/notice.js';
import {usePages} from '../lib/pages.js';
import {Empty, Input, Select, Table, Tag} from '../lib/parts.js';
import {asked, keepAsked, mount, useSettled} from '../lib/screen.js';
import {number, t, time} from '../lib/words.js';

const FILTERS = ['action', 'owner', 'subject', 'outcome'];
const OUTCOMES = {done: 'good', begun: '', refused: 'warn', failed: 'bad'};

function Audit() {
  const [filter, set] = useState(Object.fromEntries(FILTERS.map(name => [name, asked.get(name) ?? ''])));
  const put = name => value => set(old => ({...old, [name]: value}));
  const settled = useSettled(JSON.stringify(filter));
  const wanted = JSON.parse(settled);
  const {rows, more} = usePages('v1/audit', wanted);
  useEffect(() => FILTERS.forEach(name => keepAsked(name, wanted[name])), [settled]);
  useEffect(() => { if (rows) say(rows.length ? t('audit.found', {count: number(rows.length)}) : t('audit.empty')); }, [rows]);
  return html`
    <p class="hint">${t('audit.verified')} <code>dosirak audit verify</code></p>
    <div class="row">
      ${FILTERS.slice(0, 3).map(name => html`<${Input} key=${name} type="search" label=${t(`audit.${name}`)} value=${filter[name]} onInput=${put(name)} maxlength="200" list=${name} autocomplete="off" />
        <datalist id=${name}>${[...new Set(rows?.map(row => row[name]))].map(each => html`<option key=${each} value=${each} />`)}</datalist>`)}
      <${Select} label=${t('audit.outcome')} value=${filter.outcome} onChange=${put('outcome')} options=${[['', t('audit.any')], ...Object.keys(OUTCOMES).map(each => [each, t(`audit.${each}`)])]} />
    </div>
    ${rows?.length > 0 && html`<${Table} name=${t('title.audit')} columns=${COLUMNS} rows=${rows} keyOf=${row => row.number} />`}
    ${rows?.length === 0 && html`<${Empty}>${t('audit.empty')}<//>`}
    ${more && html`<button type="button" onClick=${() => attempt(more)}>${t('parts.more')}</button>`}`;
}

// The address of all rows that say the same of one thing.
const all = (name, row) => `?${name}=${encodeURIComponent(row[name])}`;
const COLUMNS = [
  {label: t('audit.at'), cell: row => html`<time class="whole" datetime=${row.at}>${time(row.at)}</time><br /><span class="hint">${t('audit.number', {number: number(row.number)})}</span>`},
  {label: t('audit.action'), cell: row => html`<a href=${all('action', row)}>${row.action}</a> <${Tag} kind=${OUTCOMES[row.outcome]}>${t(`audit.${row.outcome}`)}<//>`},
  {label: t('audit.subject'), cell: row => html`<span class="free">${row.subject}</span>`},
  {label: t('audit.owner'), cell: row => html`${row.owner && html`<a href=${all('owner', row)}>${row.name || row.owner}</a><br />`}
    <span class="hint">${[row.name && row.owner, row.peer].filter(Boolean).join(' · ')}</span>`},
  {label: t('audit.detail'), cell: row => html`${Object.entries(row.detail).map(([name, value]) =>
    html`<div key=${name} class="free">${name}: ${typeof value === 'string' ? value : JSON.stringify(value)}</div>`)}<span class="hint">${row.request_id}</span>`},
];

mount(Audit);
