// A rollout: a version on trial under an alias, with a share of its conversations, watched while it runs.
import {html, useEffect, useRef, useState} from '../lib/view.js';
import {ApiError, ask, query} from '../lib/api.js';
import {pages, repository} from '../lib/addresses.js';
import {guardsAfter, guardsOf} from '../lib/guards.js';
import {attempt, fail, say} from '../lib/notice.js';
import {Checkbox, Empty, Input, Region, Table, Tag} from '../lib/parts.js';
import {mount, places, useTurns} from '../lib/screen.js';
import {VersionSelect, useVersions} from '../lib/versions.js';
import {number, percent, t} from '../lib/words.js';
import {useWatched} from '../lib/watch.js';

const {model, alias} = places;
const here = repository(model, 'aliases', alias, 'rollout');
const name = `${model}@${alias}`;
const named = version => `${model}:${version}`;
const link = version => html`<a class="whole" data-instant href=${pages.version(model, version)}>${named(version)}</a>`;
const share = value => percent(value, 1);
const times = value => `${number(value, 2)}×`;
const weightOf = rollout => `${number(rollout.weight)}%`;

// Where nothing ran yet the API knows no rollout: an empty history.
const read = signal => ask(here, {signal}).catch(error => {
  if (error.status === 404) return {rollout: null, history: []};
  throw error;
});

function Rollout() {
  const known = useVersions(model);
  const {data, look} = useWatched(read, 2000);
  const [seen, setSeen] = useState();
  const rollout = data?.rollout;
  const earlier = data ? data.history.filter(each => each.started_at !== rollout?.started_at).map(closed).reverse() : [];
  const last = rollout ?? earlier[0];
  useEffect(() => { known.load().catch(fail); }, [rollout?.started_at]);
  useEffect(() => { if (rollout) setSeen(rollout); }, [data]);
  const base = rollout?.base ?? known.aliases?.[alias];
  const candidates = known.versions?.map(each => each.version).filter(each => each !== base) ?? [];
  useEffect(() => {
    if (data && known.versions) say(told(rollout, earlier[0], base, candidates));
  }, [Boolean(data), last?.started_at, last?.state, rollout?.weight, base, candidates.length]);
  if (!data || !known.versions) return null;
  const ended = !rollout && seen && last?.started_at === seen.started_at && last.state === 'rolled_back';
  const tables = rollout ? [rollout, guardsOf(rollout)] : ended ? [seen, guardsAfter(seen, last.reason)] : null;
  return html`
    <div class="row"><a class="button" data-instant href=${pages.alias(model, alias)}>${name}</a></div>
    <div class="columns">
      ${base ? html`<${Region} name=${t('rollout.trial')}><${Trial} known=${known} rollout=${rollout} base=${base} candidates=${candidates} look=${look} /><//>`
        : html`<${Empty}><a href=${pages.alias(model, alias)}>${t('rollout.promote_first', {alias: name})}</a><//>`}
      ${tables && html`<${Watched} rollout=${tables[0]} guards=${tables[1]} ended=${ended} />`}
    </div>
    ${earlier.length > 0 && html`<${Region} name=${t('rollout.earlier')}><${Table} bare=${false} name=${t('rollout.earlier')} columns=${EARLIER} rows=${earlier} keyOf=${row => row.started_at} /><//>`}`;
}

// A rollout whose alias was moved has ended, before the server writes it down.
const closed = each => each.state === 'running' ? {...each, state: 'aborted', reason: t('rollout.alias_moved')} : each;

// What the status says: what runs, else how the last one ended, else what to do next.
function told(rollout, last, base, candidates) {
  if (rollout) return t('rollout.running', {candidate: named(rollout.candidate), base: named(rollout.base), weight: weightOf(rollout)});
  if (!base) return t('rollout.no_alias', {alias: name});
  if (last) return t(`rollout.last_${last.state}`, {alias: name, candidate: named(last.candidate), base: named(base), reason: last.reason}).trim();
  return candidates.length ? t('rollout.none', {base: named(base)}) : t('rollout.no_candidate', {model, base: named(base)});
}

const BEGIN = {weight: 10, sticky: true, shadow: false, guards: {error_rate: 0.05, ttft_p95_ratio: 3, min_requests: 20}};

// What the form holds and does. It follows the rollout that runs, but for what was changed here.
function useTrial({known, rollout, base, candidates, look, first}) {
  const [edits, setEdits] = useState({});
  const turns = useTurns();
  const held = rollout ?? BEGIN;
  const form = {weight: held.weight, sticky: held.sticky, shadow: held.shadow, ...held.guards, reason: '', ...edits};
  const candidate = rollout?.candidate ?? (edits.candidate && edits.candidate !== base ? edits.candidate : candidates[0]);
  const run = work => turns(async () => {
    await attempt(async () => {
      await unmoved(rollout);
      await work();
      await look();
      first.current?.focus();
    });
    await known.load().catch(fail);
  });
  const begin = run(async () => {
    await ask(here, {method: 'PUT', body: bodyOf(form, candidate)});
    setEdits(old => ({reason: old.reason ?? ''}));
  });
  const promote = run(async () => { await ask(`${here}/promote`, {method: 'POST', body: {reason: form.reason}}); setEdits({}); });
  const abort = run(async () => { await ask(`${here}${query({reason: form.reason})}`, {method: 'DELETE'}); setEdits({}); });
  return {form, put: key => value => setEdits(old => ({...old, [key]: value})), candidate, begin, promote, abort};
}

// An empty limit is the server's own.
function bodyOf({weight, sticky, shadow, ...form}, candidate) {
  const limits = ['error_rate', 'ttft_p95_ratio', 'min_requests'].filter(key => form[key] !== '');
  return {candidate, weight: Number(weight), sticky, shadow, guards: Object.fromEntries(limits.map(key => [key, Number(form[key])]))};
}

function Trial({known, rollout, base, candidates, look}) {
  const first = useRef();
  const {form, put, candidate, begin, promote, abort} = useTrial({known, rollout, base, candidates, look, first});
  if (!candidate) return html`<p><a href=${pages.model(model)}>${t('version.all', {model})}</a></p>`;
  return html`<form onSubmit=${begin} novalidate>
    <div class="row"><${VersionSelect} label=${t('rollout.candidate')} model=${model} known=${known} options=${rollout ? [candidate] : candidates} value=${candidate} onChange=${put('candidate')} disabled=${Boolean(rollout)} />
      <p class="hint">${t('rollout.beside')} ${link(base)}</p></div>
    <div class="row"><${Input} class="grow" type="range" min="0" max="100" step="1" label=${t('rollout.weight')} value=${form.weight} onInput=${put('weight')} aria-valuetext=${weightOf(form)} />
      <span class="figure">${weightOf(form)}</span></div>
    <div class="row middle"><${Checkbox} label=${t('rollout.sticky')} checked=${form.sticky} onChange=${put('sticky')} />
      <${Checkbox} label=${t('rollout.shadow')} checked=${form.shadow} onChange=${put('shadow')} /></div>
    <div class="row limits">
      <${Input} type="number" min="0" max="1" step="0.01" label=${t('rollout.error_rate')} value=${form.error_rate} onInput=${put('error_rate')} aria-describedby="share-hint" />
      <${Input} type="number" min="0" step="0.1" label=${t('rollout.ttft_p95_ratio')} value=${form.ttft_p95_ratio} onInput=${put('ttft_p95_ratio')} />
      <${Input} type="number" min="1" max="10000" step="1" label=${t('rollout.min_requests')} value=${form.min_requests} onInput=${put('min_requests')} />
    </div>
    <p class="hint" id="share-hint">${t('rollout.share_hint')}</p>
    <${Input} label=${t('alias.reason')} value=${form.reason} onInput=${put('reason')} maxlength="1000" autocomplete="off" aria-describedby="reason-hint" />
    <p class="hint" id="reason-hint">${t('rollout.reason_hint')}</p>
    <div class="row">
      <button class="main" ref=${first}>${rollout ? t('rollout.change') : t('rollout.start')}</button>
      ${rollout && html`<button type="button" onClick=${promote}>${t('rollout.promote', {version: named(rollout.candidate)})}</button>
        <button type="button" class="danger" onClick=${abort}>${t('rollout.abort')}</button>`}
    </div>
  </form>`;
}

// A button acts on the rollout that this page shows, and on no other that began meanwhile.
async function unmoved(rollout) {
  const found = (await read()).rollout;
  if (found?.started_at !== rollout?.started_at) throw new ApiError(t('rollout.moved', {alias: name}), 409);
}

function Watched({rollout, guards, ended}) {
  const {observed} = rollout;
  const versions = [{version: rollout.base, ...observed.base}, {version: rollout.candidate, ...observed.candidate}];
  return html`<${Region} name=${t('rollout.watched')}>
    <h3>${t('rollout.observed')}</h3>
    <${Table} bare=${false} name=${t('rollout.observed')} columns=${OBSERVED} rows=${versions} keyOf=${row => row.version} />
    <h3>${t('rollout.guards')}</h3>
    <${Table} bare=${false} name=${t('rollout.guards')} columns=${GUARDS} rows=${guards} keyOf=${row => row.guard} />
    <p class="hint">${ended ? t('rollout.seen_last') : t('rollout.guards_hint', {count: number(rollout.guards.min_requests)})}</p>
    ${rollout.shadow && html`<h3>${t('rollout.shadow')}</h3><${Shadow} found=${observed.shadow} />`}
  <//>`;
}

function Shadow({found}) {
  if (!found) return html`<p class="hint">${t('rollout.no_shadow')}</p>`;
  const rows = [
    [t('rollout.compared'), number(found.compared)], [t('rollout.same'), share(found.same)], [t('rollout.agreement'), share(found.agreement)],
    [t('rollout.length_ratio'), times(found.length_ratio)], [t('rollout.latency_ratio'), times(found.latency_ratio)],
  ];
  return html`<${Table} bare=${false} name=${t('rollout.shadow')} rows=${rows} keyOf=${([label]) => label} columns=${[
    {label: t('measure.measure'), cell: ([label]) => label}, {label: t('measure.value'), number: true, cell: ([, text]) => text}]} />`;
}

const OBSERVED = [
  {label: t('model.version'), cell: row => link(row.version)},
  {label: t('rollout.requests'), number: true, cell: row => number(row.requests)},
  {label: t('rollout.rate'), number: true, cell: row => share(row.error_rate)},
  {label: 'TTFT p95', number: true, cell: row => row.ttft_p95_ms === null ? '–' : `${number(row.ttft_p95_ms)} ms`},
];
const KINDS = {waiting: '', ok: 'good', broken: 'bad'};
const shown = {error_rate: share, ttft_p95_ratio: times};
const GUARDS = [
  {label: t('rollout.guard'), cell: row => t(`guard.${row.guard}`)},
  {label: t('rollout.observed'), number: true, cell: row => row.value === null ? '–' : shown[row.guard](row.value)},
  {label: t('measure.limit'), number: true, cell: row => `≤ ${shown[row.guard](row.limit)}`},
  {label: t('rollout.state'), cell: row => html`<${Tag} kind=${KINDS[row.state]}>${t(`guard.state_${row.state}`)}<//>`},
];
const EARLIER = [
  {label: t('rollout.candidate'), cell: row => link(row.candidate)},
  {label: t('rollout.state'), cell: row => html`<${Tag} kind=${{promoted: 'good', rolled_back: 'bad'}[row.state] ?? ''}>${t(`rollout.state_${row.state}`)}<//>`},
  {label: t('alias.reason'), cell: row => html`<div class="prose">${row.reason || '–'}</div>`},
];

mount(Rollout);
