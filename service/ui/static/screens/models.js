// The models of the repository, searched as one types, and the import of a new one.
import {html, useEffect, useState} from '../lib/view.js';
import {ask, query, send} from '../lib/api.js';
import {pages, repository} from '../lib/addresses.js';
import {attempt, fail, say} from '../lib/notice.js';
import {Dialog, Empty, Input, Select, Table, Tag} from '../lib/parts.js';
import {asked, keepAsked, mount, useSettled} from '../lib/screen.js';
import {bytes, number, t} from '../lib/words.js';

function Models() {
  const [text, setText] = useState(asked.get('query') ?? '');
  const [importing, setImporting] = useState(false);
  const [page, setPage] = useState();
  const wanted = useSettled(text);
  const load = async (cursor = '') => {
    const found = await ask(`v1/repository/models${query({query: wanted, cursor})}`);
    setPage(old => ({data: cursor ? [...old.data, ...found.data] : found.data, cursor: found.next_cursor}));
  };
  useEffect(() => { keepAsked('query', wanted); load().catch(fail); }, [wanted]);
  useEffect(() => {
    if (page) say(page.data.length ? t('models.found', {count: number(page.data.length)}) : wanted ? t('models.nothing', {query: wanted}) : t('models.empty'));
  }, [page]);
  return html`
    <div class="row">
      <${Input} class="grow" type="search" label=${t('models.search')} value=${text} onInput=${setText} />
      <button type="button" class="main" onClick=${() => setImporting(true)}>${t('models.import')}</button>
    </div>
    ${page && page.data.length > 0 && html`<${Table} name=${t('title.models')} columns=${columns()} rows=${page.data} keyOf=${row => row.name} />`}
    ${page && page.data.length === 0 && html`<${Empty}>${wanted ? t('models.nothing', {query: wanted}) : t('models.empty')}<//>`}
    ${page?.cursor && html`<button type="button" onClick=${() => attempt(() => load(page.cursor))}>${t('parts.more')}</button>`}
    ${importing && html`<${Import} onClose=${() => setImporting(false)} />`}`;
}

const columns = () => [
  {label: t('models.model'), cell: row => html`<a data-instant href=${pages.model(row.name)}>${row.name}</a>`},
  {label: t('models.newest'), cell: row => html`<a data-instant href=${pages.version(row.name, row.newest)}>${row.name}:${row.newest}</a>`},
  {label: t('models.aliases'), cell: row => html`<span class="tags">${Object.entries(row.aliases).map(([alias, version]) => html`
    <a key=${alias} data-instant href=${pages.alias(row.name, alias)}><${Tag} kind=${alias === 'production' ? 'good' : ''}>${alias} → ${version}<//></a>`)}</span>`},
  {label: t('models.versions'), number: true, cell: row => number(row.versions)},
  {label: t('models.size'), number: true, cell: row => bytes(row.bytes)},
];

const PRECISIONS = ['', 'bf16', 'int8', 'int8-weight', 'llm-int8', 'fp32'];

function Import({onClose}) {
  const [form, setForm] = useState({name: '', source: '', precision: '', evaluate: 'quick'});
  const put = key => value => setForm(old => ({...old, [key]: value}));
  const submit = event => {
    event.preventDefault();
    const {name, precision, ...rest} = form;
    attempt(async () => {
      const body = {...rest, ...(precision && {precision})};
      const job = await (await send(repository(name, 'versions'), {method: 'POST', body})).json();
      location.assign(`${pages.jobs()}?job=${encodeURIComponent(job.id)}`);
    }).then(well => well || onClose());
  };
  return html`<${Dialog} title=${t('models.import')} onClose=${onClose}>
    <form onSubmit=${submit}>
      <${Input} label=${t('models.name')} value=${form.name} onInput=${put('name')} required pattern="[a-z0-9][a-z0-9._\\-]*" autofocus hint=${t('models.name_hint')} />
      <${Input} label=${t('models.source')} value=${form.source} onInput=${put('source')} required hint=${t('models.source_hint')} />
      <${Select} label=${t('version.precision')} value=${form.precision} onChange=${put('precision')} options=${PRECISIONS.map(each => [each, each || t('models.as_is')])} />
      <${Select} label=${t('version.evaluate')} value=${form.evaluate} onChange=${put('evaluate')} options=${['none', 'quick', 'full'].map(each => [each, t(`effort.${each}`)])} />
      <div class="row"><button type="button" onClick=${onClose}>${t('parts.cancel')}</button><button class="main">${t('models.import')}</button></div>
    </form>
  <//>`;
}

mount(Models);
