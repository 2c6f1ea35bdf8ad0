// One model: its versions by pages, what to compare, a figure over the versions, its aliases.
import {html, useEffect, useState} from '../lib/view.js';
import {pages} from '../lib/addresses.js';
import {LineChart} from '../lib/chart.js';
import {attempt, fail, say} from '../lib/notice.js';
import {Breach} from '../lib/breach.js';
import {Checkbox, Region, Select, Table, Tag} from '../lib/parts.js';
import {QUALITY, SPEED, comparable, lines} from '../lib/report.js';
import {mount, places} from '../lib/screen.js';
import {useVersions} from '../lib/versions.js';
import {bytes, number, t, time} from '../lib/words.js';

const {model} = places;
const FIGURES = [...QUALITY, ...SPEED, {key: 'bytes', label: t('models.size')}];

function Model() {
  const {versions, aliases, more, load} = useVersions(model);
  const [chosen, setChosen] = useState([]);
  const [metric, setMetric] = useState('perplexity');
  useEffect(() => { load().catch(fail); }, []);
  useEffect(() => { if (versions) say(t('model.found', {count: number(versions.length)})); }, [versions]);
  if (!versions) return null;
  const rows = comparable(versions);
  const choose = version => on => setChosen(old => on ? [...old, version].slice(-2) : old.filter(each => each !== version));
  const compare = () => {
    const [a, b] = versions.map(each => each.version).filter(each => chosen.includes(each)).reverse();
    location.assign(pages.compare(model, a, b));
  };
  return html`
    <${Table} name=${t('models.versions')} columns=${columns(chosen, choose)} rows=${rows} keyOf=${row => row.version} />
    <div class="row middle">
      <button type="button" class="main" disabled=${chosen.length !== 2} onClick=${compare}>${t('model.compare')}</button>
      <span class="hint">${t('model.compare_hint')}</span>
      ${more && html`<button type="button" onClick=${() => attempt(() => load(more))}>${t('model.older')}</button>`}
    </div>
    <div class="columns">
      <${Trend} versions=${rows} metric=${metric} onMetric=${setMetric} />
      <${Aliases} aliases=${aliases} />
    </div>`;
}

const figure = (row, key) => lines([...QUALITY, ...SPEED].filter(each => each.key === key), row.report)[0];

const columns = (chosen, choose) => [
  {label: t('model.version'), cell: row => html`<a data-instant href=${pages.version(model, row.version)}>${row.model}</a>`},
  {label: t('model.digest'), mono: true, key: 'digest'},
  {label: t('version.precision'), key: 'precision'},
  {label: t('models.size'), number: true, cell: row => bytes(row.bytes)},
  {label: t('models.aliases'), cell: row => html`<span class="tags">${row.aliases.map(alias => html`
    <a key=${alias} data-instant href=${pages.alias(model, alias)}><${Tag} kind=${alias === 'production' ? 'good' : ''}>${alias}<//></a>`)}<${Breach} broken=${row.breaks_gate} /></span>`},
  {label: t('measure.perplexity'), number: true, cell: row => figure(row, 'perplexity')?.text ?? html`<span class="hint">${t(row.apart ? 'report.apart' : `report.${row.report_state}`)}</span>`},
  {label: t('model.decode'), number: true, cell: row => figure(row, 'speed.decode.1')?.text ?? '–'},
  {label: t('model.created'), cell: row => time(row.created_at)},
  {label: '', cell: row => html`<${Checkbox} label=${t('model.compare_one', {version: row.model})} checked=${chosen.includes(row.version)} onChange=${choose(row.version)} />`},
];

function Trend({versions, metric, onMetric}) {
  const of = row => metric === 'bytes' ? {value: row.bytes, text: bytes(row.bytes)} : figure(row, metric);
  const points = [...versions].reverse().map(row => ({name: row.model, ...of(row)})).filter(point => point.value !== undefined);
  return html`<${Region} name=${t('model.trend')}>
    <${Select} label=${t('model.metric')} value=${metric} onChange=${onMetric} options=${FIGURES.map(each => [each.key, each.label])} />
    ${points.length ? html`<${LineChart} name=${t('model.trend')} points=${points} />
      <${Table} bare=${false} name=${t('model.figures')} columns=${[{label: t('model.version'), key: 'name'}, {label: FIGURES.find(each => each.key === metric).label, key: 'text', number: true}]} rows=${points} />`
      : html`<p class="hint">${t('model.no_trend')}</p>`}
    ${versions.some(row => row.apart) && html`<p class="hint">${t('model.apart', {versions: versions.filter(row => row.apart).map(row => row.model).join(', ')})}</p>`}
  <//>`;
}

function Aliases({aliases}) {
  const rows = Object.entries(aliases);
  return html`<${Region} name=${t('models.aliases')}>
    ${rows.length ? html`<${Table} bare=${false} name=${t('models.aliases')} columns=${[
      {label: t('model.alias'), cell: ([alias]) => html`<a data-instant href=${pages.alias(model, alias)}>${alias}</a>`},
      {label: t('model.version'), cell: ([, version]) => html`<a data-instant href=${pages.version(model, version)}>${model}:${version}</a>`},
      {label: t('model.rollout'), cell: ([alias]) => html`<a href=${pages.rollout(model, alias)}>${t('model.rollout_of', {alias})}</a>`},
    ]} rows=${rows} keyOf=${([alias]) => alias} />` : html`<p class="hint">${t('model.no_alias')}</p>`}
    ${!('production' in aliases) && html`<a class="button" href=${pages.alias(model, 'production')}>${t('model.first_alias')}</a>`}
  <//>`;
}

mount(Model);
