// The jobs of the server: how far each is, what it made, and how to end it. The address may name one to follow.
import {html, useEffect, useState} from '../lib/view.js';
import {ask} from '../lib/api.js';
import {pageOfReference, pages} from '../lib/addresses.js';
import {attempt, quiet, say, sayLink} from '../lib/notice.js';
import {Empty, Table, Tag} from '../lib/parts.js';
import {asked, mount, useAnswer} from '../lib/screen.js';
import {number, percent, t, time} from '../lib/words.js';

const followed = asked.get('job');
const waits = job => job.state === 'queued' || job.state === 'running';

function Jobs() {
  const [busy, setBusy] = useState(true);
  const {data, error, reload} = useAnswer('v1/jobs', {every: busy ? 1000 : 10_000});
  const jobs = data?.data;
  useEffect(() => { if (jobs) setBusy(jobs.some(waits)); }, [jobs]);
  useEffect(() => { if (!error) quiet(); }, [error]);
  useOutcome(jobs);
  if (!jobs) return null;
  const cancel = job => attempt(async () => {
    await ask(`v1/jobs/${encodeURIComponent(job.id)}`, {method: 'DELETE'});
    document.getElementById(job.id).focus();  // its button is about to go
    await reload();
    say(t('jobs.cancelled', {of: subject(job)}));
  });
  if (!jobs.length) return html`<${Empty}>${t('jobs.empty')}<br /><a href=${pages.models()}>${t('title.models')}</a><//>`;
  return html`<${Table} name=${t('title.jobs')} columns=${columns(cancel)} rows=${jobs} keyOf=${job => job.id} isCurrent=${job => job.id === followed} />`;
}

// Says what became of the job in the address, or how many there are; again only when that has changed.
function useOutcome(jobs) {
  const job = jobs?.find(each => each.id === followed);
  useEffect(() => {
    if (!jobs) return;
    if (followed && !job) attempt(() => ask(`v1/jobs/${encodeURIComponent(followed)}`));
    if (!job) return say(jobs.length ? t('jobs.found', {count: number(jobs.length)}) : t('jobs.empty'));
    const text = t(`jobs.told_${job.state}`, {kind: t(`jobs.kind_${job.kind}`), of: subject(job), error: job.error ?? ''});
    const made = result(job);
    if (made) sayLink(text, pageOfReference(made), made); else say(text);
  }, [job?.state ?? jobs?.length]);
}

// What a job is about: the model that an import makes, or the version that is measured or quantized.
const subject = job => job.arguments.model ?? job.arguments.name ?? '';
const result = job => job.result?.version ? `${job.result.model}:${job.result.version}` : null;
const KINDS = {queued: '', running: 'warn', succeeded: 'good', failed: 'bad', cancelled: ''};

const columns = cancel => [
  {label: t('jobs.job'), cell: job => html`<a class="whole" id=${job.id} href=${pages.job(job.id)}>${job.id.slice(0, 12)}</a><br /><span class="hint">${time(job.created_at)}</span>`},
  {label: t('jobs.kind'), cell: job => t(`jobs.kind_${job.kind}`)},
  {label: t('jobs.of'), cell: job => html`<${Of} job=${job} />`},
  {label: t('jobs.state'), cell: job => html`<${Tag} kind=${KINDS[job.state]}>${t(`jobs.state_${job.state}`)}<//>
    ${job.error && html`<p class="hint">${job.error}</p>`}${job.result?.not_evaluated && html`<p class="hint">${job.result.not_evaluated}</p>`}`},
  {label: t('jobs.progress'), cell: job => html`<div class="row middle tight">
    <progress max="1" value=${job.progress} aria-label=${t('jobs.progress_of', {of: subject(job)})}></progress> <span>${percent(job.progress, 0)}</span>
    ${waits(job) && html`<button type="button" aria-describedby=${job.id} onClick=${() => cancel(job)}>${t('parts.cancel')}</button>`}</div>
    ${waits(job) && job.doing && html`<span class="hint">${job.doing}</span>`}`},
];

function Of({job}) {
  const {model, name, source, precision} = job.arguments;
  const made = result(job);
  return html`${model ? html`<a href=${pageOfReference(model)}>${model}</a>` : name}
    ${made && made !== model && html` → <a href=${pageOfReference(made)}>${made}</a>`}
    ${(source || precision) && html`<br /><span class="hint">${[source, precision].filter(Boolean).join(' · ')}</span>`}`;
}

mount(Jobs);
