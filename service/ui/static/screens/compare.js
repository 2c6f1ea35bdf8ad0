// Two versions of a model side by side: facts, measures and files, where they differ.
import {html, useEffect, useState} from '../lib/view.js';
import {query} from '../lib/api.js';
import {pageOfReference, pages, repository} from '../lib/addresses.js';
import {say} from '../lib/notice.js';
import {Checkbox, Empty, Region, Table, Tag} from '../lib/parts.js';
import {QUALITY, SPEED, comparable, lines} from '../lib/report.js';
import {asked, mount, places, rename, useAnswer} from '../lib/screen.js';
import {bytes, change, number, t, time} from '../lib/words.js';

const {model} = places;
const [a, b] = [asked.get('a'), asked.get('b')];
const names = [`${model}:${a}`, `${model}:${b}`];
const LESS_IS_BETTER = new Set(['perplexity', 'perplexity_change', 'kl', 'load']);
const IS_A_CHANGE = new Set(['perplexity_change', 'top1_agreement', 'clear_top1_agreement', 'greedy_agreement', 'recall', 'kl']);

function Compare() {
  const {data} = useAnswer(`${repository(model, 'compare')}${query({a, b})}`);
  const [only, setOnly] = useState(true);
  const facts = data ? factRows(data) : [];
  const files = data ? fileRows(data.files) : [];
  const differing = rows => rows.filter(row => row.differs);
  useEffect(() => {
    if (data) say(t('compare.found', {facts: number(differing(facts).length), files: number(differing(files).length), all: number(files.length)}));
  }, [data]);
  if (!data) return null;
  const shown = rows => only ? differing(rows) : rows;
  return html`
    <div class="row middle">
      <${Checkbox} label=${t('compare.only')} checked=${only} onChange=${setOnly} />
      <a class="button" data-instant href=${pages.sideBySide(...names)}>${t('compare.ask_both')}</a>
      ${names.map(name => html`<a key=${name} data-instant href=${pageOfReference(name)}>${name}</a>`)}
    </div>
    <${Part} name=${t('version.facts')} columns=${sides(t('compare.fact'))} rows=${shown(facts)} nothing=${t('compare.no_fact')} />
    <div class="columns">
      <${Measures} name=${t('version.quality')} figures=${QUALITY} data=${data} shown=${shown} />
      <${Measures} name=${t('version.speed')} figures=${SPEED} data=${data} shown=${shown} />
    </div>
    <${Part} name=${t('version.files')} columns=${FILES} rows=${shown(files)} nothing=${t('compare.no_file')} />`;
}

function Part({name, columns, rows, nothing, children}) {
  return html`<${Region} name=${name}>
    ${rows.length ? html`<${Table} bare=${false} name=${name} columns=${columns} rows=${rows} keyOf=${row => row.label} />` : html`<p class="hint">${nothing}</p>`}
    ${children}
  <//>`;
}

function Measures({name, figures, data, shown}) {
  const unmeasured = [data.a, data.b].filter(each => !each.report);
  const pair = comparable([data.a, data.b]);
  const nothing = unmeasured.length === 2 ? t('version.measure_hint') : t('compare.no_measure');
  const rows = shown(measureRows(figures, pair));
  return html`<${Part} name=${name} columns=${sides(t('measure.measure'), true)} rows=${rows} nothing=${nothing}>
    ${unmeasured.map(each => html`<p class="hint" key=${each.model}>${each.model}: ${t(`report.${each.report_state}`)}</p>`)}
    ${figures === QUALITY && pair.some(each => each.apart) && html`<p class="hint">${t('compare.apart')}</p>`}
    ${rows.some(row => row.ranges.every(Boolean)) && html`<p class="hint">${t('compare.intervals')}</p>`}
  <//>`;
}

// The columns of a table with the two versions; where they differ, their values stand out.
const sides = (label, measured) => [
  {label, key: 'label'},
  ...names.map((name, at) => ({label: name, number: measured, cell: row => html`<${row.differs ? 'strong' : 'span'}>${row.texts[at] ?? '–'}<//>
    ${row.better === at && html` <${Tag} kind="good">${t('compare.better')}<//>`}
    ${row.ranges?.[at] && html`<br /><span class="hint">${row.ranges[at]}</span>`}
    ${at === 1 && row.change && html`<br /><span class="hint">${row.change}</span>`}`})),
];
const FILES = [
  {label: t('version.path'), key: 'label'},
  {label: t('compare.state'), cell: row => html`<${Tag} kind=${row.differs ? 'warn' : ''}>${row.differs ? t('compare.differs') : t('compare.same')}<//>`},
];

const FACTS = [
  [t('version.precision'), each => each.precision], [t('version.dtype'), each => each.dtype], [t('version.architecture'), each => each.architecture],
  [t('version.parameters'), each => number(each.parameters), each => each.parameters], [t('version.window'), each => number(each.context_window), each => each.context_window],
  [t('version.vocabulary'), each => number(each.vocab_size), each => each.vocab_size], [t('models.size'), each => bytes(each.bytes), each => each.bytes],
  [t('version.license'), each => each.license], [t('models.aliases'), each => each.aliases.join(', ')], [t('version.parent'), each => each.lineage.parent],
  [t('version.recipe'), each => each.lineage.recipe], [t('version.source'), each => each.lineage.source], [t('version.author'), each => each.lineage.author],
  [t('version.tools'), each => each.lineage.tools.join(', ')], [t('model.digest'), each => each.digest], [t('model.created'), each => time(each.created_at)],
];

const factRows = data => FACTS.map(([label, text, value]) => {
  const texts = [text(data.a) || '–', text(data.b) || '–'];
  const differs = texts[0] !== texts[1];
  return {label, texts, differs, change: differs && value && moved(value(data.a), value(data.b))};
});

const fileRows = ({same, differ}) => [
  ...differ.map(label => ({label, differs: true})), ...same.map(label => ({label, differs: false})),
];

function measureRows(figures, pair) {
  const found = pair.map(each => new Map(lines(figures, each.report).map(line => [line.key, line])));
  return figures.map(({key, label}) => [label, found.map(side => side.get(key)), key]).filter(([, pair]) => pair.some(Boolean)).map(([label, pair, key]) => ({
    label, texts: pair.map(line => line?.text), ranges: pair.map(line => line?.range), differs: pair[0]?.text !== pair[1]?.text,
    better: better(key, pair), change: pair[0] && pair[1] && !IS_A_CHANGE.has(key) && moved(pair[0].value, pair[1].value),
  }));
}

// The place of the better of two figures, where their 95 % intervals do not meet; chance makes none better.
function better(key, [first, second]) {
  if (!first?.interval || !second?.interval) return null;
  const higher = first.interval.low > second.interval.high ? 0 : second.interval.low > first.interval.high ? 1 : null;
  return higher === null ? null : LESS_IS_BETTER.has(key) ? 1 - higher : higher;
}

const moved = (before, after) => before && after !== before ? t('compare.against', {change: change((after - before) / before), of: names[0]}) : '';

function Choose() {
  rename(t('compare.title', {model}));
  useEffect(() => say(t('compare.choose')), []);
  return html`<${Empty}><a href=${pages.model(model)}>${t('version.all', {model})}</a><//>`;
}

mount(a && b ? Compare : Choose);
