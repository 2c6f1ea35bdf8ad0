// The models of the repository, searched as one types, and the import of a new one.
import {html, useEffect, useState} from '../lib/view.js';
import {ask} from '../lib/api.js';
import {pages, repository} from '../lib/addresses.js';
import {attempt, say} from '../lib/notice.js';
import {usePages} from '../lib/pages.js';
import {Dialog, Empty, Input, Select, Table, Tag} from '../lib/parts.js';
import {asked, keepAsked, mount, useSettled} from '../lib/screen.js';
import {bytes, number, t} from '../lib/words.js';

function Models() {
  const [text, setText] = useState(asked.get('query') ?? '');
  const [importing, setImporting] = useState(false);
  const wanted = useSettled(text);
  const {rows, more} = usePages(repository(), {query: wanted});
  useEffect(() => keepAsked('query', wanted), [wanted]);
  const nothing = wanted ? t('models.nothing', {query: wanted}) : t('models.empty');
  useEffect(() => { if (rows) say(rows.length ? t('models.found', {count: number(rows.length)}) : nothing); }, [rows]);
  return html`
    <div class="row">
      <${Input} class="grow" type="search" label=${t('models.search')} value=${text} onInput=${setText} />
      <button type="button" class="main" onClick=${() => setImporting(true)}>${t('models.import')}</button>
    </div>
    ${rows?.length > 0 && html`<${Table} name=${t('title.models')} columns=${COLUMNS} rows=${rows} keyOf=${row => row.name} />`}
    ${rows?.length === 0 && html`<${Empty}>${nothing}<//>`}
    ${more && html`<button type="button" onClick=${() => attempt(more)}>${t('parts.more')}</button>`}
    ${importing && html`<${Import} onClose=${() => setImporting(false)} />`}`;
}

const COLUMNS = [
  {label: t('models.model'), cell: row => html`<a data-instant href=${pages.model(row.name)}>${row.name}</a>`},
  {label: t('models.newest'), cell: row => html`<a data-instant href=${pages.version(row.name, row.newest)}>${row.name}:${row.newest}</a>`},
  {label: t('models.aliases'), cell: row => html`<span class="tags">${Object.entries(row.aliases).map(([alias, version]) => html`
    <a key=${alias} data-instant href=${pages.alias(row.name, alias)}><${Tag} kind=${alias === 'production' ? 'good' : ''}>${alias} → ${version}<//></a>`)}</span>`},
  {label: t('models.versions'), number: true, cell: row => number(row.versions)},
  {label: t('models.size'), number: true, cell: row => bytes(row.bytes)},
];

const PRECISIONS = ['', 'bf16', 'int8', 'int8-weight', 'llm-int8', 'int4', 'file', 'fp32'];

function Import({onClose}) {
  const [form, setForm] = useState({name: '', source: '', precision: '', evaluate: 'quick'});
  const put = key => value => setForm(old => ({...old, [key]: value}));
  const submit = event => {
    event.preventDefault();
    const {name, precision, ...rest} = form;
    attempt(async () => {
      const body = {...rest, ...(precision && {precision})};
      const job = await ask(repository(name, 'versions'), {method: 'POST', body});
      location.assign(pages.job(job.id));
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
