// Messages as articles, one below the other; the newest stays in sight while one looks at the end.
import {html, useLayoutEffect, useRef} from './view.js';
import {Calls} from './calls.js';
import {Tag} from './parts.js';
import {number, t} from './words.js';

export function Log({name, busy, children}) {
  const box = useRef();
  const atEnd = useRef(true);
  const look = () => { atEnd.current = box.current.scrollHeight - box.current.scrollTop - box.current.clientHeight < 40; };
  useLayoutEffect(() => { if (atEnd.current) box.current.scrollTop = box.current.scrollHeight; });
  return html`<div ref=${box} class="log" role="log" tabindex="0" aria-label=${name} aria-busy=${busy ? 'true' : 'false'} onScroll=${look}>${children}</div>`;
}

// Who says it, as the chat names its speakers.
export const speaker = item => item.role === 'user' ? t('chat.you') : item.role === 'tool' ? [t('message.result'), item.called].filter(Boolean).join(' · ') : item.model ?? t('role.assistant');

// `name` is who says it; `facts` shows what the answer cost; `children` are buttons.
export function Said({item, name, facts = true, children}) {
  const mine = ['user', 'tool'].includes(item.role);
  const notes = [item.state === 'stopped' && t('chat.stopped'), facts && FINISHES.includes(item.finish) && t(`finish.${item.finish}`)].filter(Boolean);
  return html`<article aria-label=${name} class=${mine ? 'said mine' : 'said'}>
    <p class="who">${name} ${notes.map(note => html`<${Tag} key=${note} kind="warn">${note}<//>`)}</p>
    <div class="text">${item.text || item.calls?.length ? item.text : (item.state === 'waiting' && !mine ? html`<span class="hint">${t('chat.waiting')}</span>` : '')}</div>
    <${Calls} calls=${item.calls ?? []} />
    ${!mine && html`<div class="row middle">${facts && html`<span class="hint">${cost(item)}</span>`}${children}</div>`}
  </article>`;
}

const FINISHES = ['length', 'deadline', 'content_filter', 'error'];
const milliseconds = value => number(value, value < 10 ? 1 : 0);

function cost({timings, usage}) {
  return [
    timings?.ttft_ms != null && t('chat.ttft', {milliseconds: milliseconds(timings.ttft_ms)}),
    timings?.tokens_per_second != null && t('chat.speed', {count: number(timings.tokens_per_second, 1)}),
    usage && t('chat.tokens', {count: number(usage.completion_tokens)}),
  ].filter(Boolean).join(' · ');
}
