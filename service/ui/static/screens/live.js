// The present work of every version: one stream of figures for the whole page, the last five minutes of them drawn.
import {html, useEffect, useRef, useState} from '../lib/view.js';
import {pageOfReference, pages} from '../lib/addresses.js';
import {follow} from '../lib/feed.js';
import {History} from '../lib/live-history.js';
import {Regions, share} from '../lib/live-regions.js';
import {fail, quiet, say} from '../lib/notice.js';
import {Empty, Select, Table, Tag} from '../lib/parts.js';
import {asked, keepAsked, mount} from '../lib/screen.js';
import {milliseconds, number, percent, t} from '../lib/words.js';

const isBusy = version => version.running + version.waiting > 0;

function Live() {
  const [isPaused, setPaused] = useState(false);
  const {versions, history} = useFigures(isPaused);
  const [chosen, setChosen] = useState(asked.get('version') ?? '');
  const order = useOrder(versions);
  if (!versions) return null;
  if (!versions.length) return html`<${Empty}>${t('live.empty')}<br /><a href=${pages.playground()}>${t('title.playground')}</a><//>`;
  const version = versions.find(each => each.model === chosen) ?? versions.find(each => each.model === order[0]);
  const choose = model => { setChosen(model); keepAsked('version', model); };
  return html`
    <${Table} name=${t('live.versions')} columns=${COLUMNS} rows=${versions} keyOf=${row => row.model} isCurrent=${row => versions.length > 1 && row === version} />
    <div class="row">
      ${versions.length > 1 && html`<${Select} label=${t('live.version')} value=${version.model} onChange=${choose} options=${order} />`}
      <button type="button" onClick=${() => setPaused(old => !old)}>${isPaused ? t('live.go_on') : t('live.pause')}</button>
    </div>
    <${Regions} version=${version} history=${history} />`;
}

// The newest event's versions, and the history; no connection while it is paused.
function useFigures(isPaused) {
  const history = useRef(new History());
  const [versions, set] = useState();
  const [link, setLink] = useState({now: 'opening'});
  useEffect(() => {
    if (isPaused) return undefined;
    const tell = (now, {seconds, error}) => {
      if (error?.status) fail(error); else if (now === 'open') quiet();
      setLink({now, seconds});
    };
    return follow('v1/live', event => { history.current.add(event); set(event.versions); }, tell);
  }, [isPaused]);
  const text = told(isPaused, link, versions?.length);
  useEffect(() => say(text), [text]);
  return {versions, history: history.current};
}

function told(isPaused, {now, seconds}, count) {
  if (isPaused) return t('live.paused');
  if (now === 'waiting') return t('live.lost', {seconds: number(seconds)});
  if (now !== 'open' || count === undefined) return t('live.opening');
  return count ? t('live.found', {count: number(count)}) : t('live.empty');
}

// The versions' names, busy ones first and new ones before old ones; the order changes only with what is loaded.
function useOrder(versions) {
  const kept = useRef([]);
  const names = new Set(versions?.map(version => version.model));
  if (names.size !== kept.current.length || kept.current.some(name => !names.has(name))) {
    const age = new Intl.Collator('en', {numeric: true});
    kept.current = [...versions ?? []].sort((a, b) => isBusy(b) - isBusy(a) || age.compare(b.model, a.model)).map(version => version.model);
  }
  return kept.current;
}

const STATES = {ready: 'good', failed: 'bad', restarting: 'warn', loading: 'warn', draining: 'warn'};
const COLUMNS = [
  {label: t('live.version'), cell: row => html`<a href=${pageOfReference(row.model)}>${row.model}</a>`},
  {label: t('live.state'), cell: row => html`<${Tag} kind=${STATES[row.state]}>${t(`live.state_${row.state}`)}<//>`},
  {label: t('live.running'), number: true, cell: row => number(row.running)},
  {label: t('live.waiting'), number: true, cell: row => number(row.waiting)},
  {label: t('live.tokens'), number: true, cell: row => number(Math.round(row.tokens_per_second * 10) / 10)},
  {label: t('live.first_p95'), number: true, cell: row => milliseconds(row.ttft_seconds.p95)},
  {label: t('live.between_p95'), number: true, cell: row => milliseconds(row.itl_seconds.p95)},
  {label: t('live.kv_used'), number: true, cell: ({kv_blocks: {total, free, cached}}) => total ? percent((total - free - cached) / total, 0) : '–'},
  {label: t('live.hits'), number: true, cell: row => share(row.prefix_hits)},
];

mount(Live);
