// The stored chats of this key, newest first, searched as one types.
import {html, useEffect, useState} from '../lib/view.js';
import {pages} from '../lib/addresses.js';
import {attempt, say} from '../lib/notice.js';
import {usePages} from '../lib/pages.js';
import {Empty, Input, Table} from '../lib/parts.js';
import {asked, keepAsked, mount, useSettled} from '../lib/screen.js';
import {nameOf} from '../lib/stored-session.js';
import {number, t, time} from '../lib/words.js';

function Sessions() {
  const [text, setText] = useState(asked.get('query') ?? '');
  const wanted = useSettled(text);
  const {rows, more} = usePages('v1/sessions', {query: wanted});
  useEffect(() => keepAsked('query', wanted), [wanted]);
  const nothing = wanted ? t('sessions.nothing', {query: wanted}) : t('sessions.empty');
  useEffect(() => { if (rows) say(rows.length ? t('sessions.found', {count: number(rows.length)}) : nothing); }, [rows]);
  return html`
    <div class="row"><${Input} class="grow" type="search" label=${t('sessions.search')} value=${text} onInput=${setText} maxlength="200" /></div>
    ${rows?.length > 0 && html`<${Table} name=${t('title.sessions')} columns=${COLUMNS} rows=${rows} keyOf=${row => row.id} />`}
    ${rows?.length === 0 && html`<${Empty}>${nothing}${!wanted && html`<br /><a href=${pages.playground()}>${t('title.playground')}</a>`}<//>`}
    ${more && html`<button type="button" onClick=${() => attempt(more)}>${t('parts.more')}</button>`}`;
}

const COLUMNS = [
  {label: t('sessions.title'), cell: row => html`<a class="free" data-instant href=${pages.session(row.id)}>${nameOf(row)}</a>`},
  {label: t('sessions.model'), cell: row => row.model ?? html`<span class="hint">${t('sessions.default_model')}</span>`},
  {label: t('sessions.policy'), cell: row => row.policy ?? 'window'},
  {label: t('sessions.changed'), cell: row => html`<time datetime=${row.updated_at}>${time(row.updated_at)}</time>`},
];

mount(Sessions);
