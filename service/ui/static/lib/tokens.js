// The tokens of an answer: how likely each was, and what else could have come.
import {html, useEffect, useId, useRef, useState} from './view.js';
import {Table} from './parts.js';
import {visible} from './visible.js';
import {percent, t} from './words.js';

const own = token => token.text || token.top.find(each => each.id === token.id)?.text || `#${token.id}`;
const chance = token => Math.exp(token.logprob);
const shade = token => `p${Math.min(9, Math.floor(chance(token) * 10))}`;
const STEPS = {ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -Infinity, End: Infinity};

// Each sampled token is an option; the table is of the chosen one.
export function AnswerTokens({tokens}) {
  const [at, setAt] = useState(0);
  const id = useId();
  const box = useRef();
  const chosen = tokens[Math.min(at, tokens.length - 1)];
  useEffect(() => setAt(0), [tokens]);
  const move = event => {
    const step = STEPS[event.key];
    if (step === undefined) return;
    event.preventDefault();
    const next = Math.max(0, Math.min(tokens.length - 1, at + step));
    setAt(next);
    box.current.children[next].scrollIntoView({block: 'nearest'});
  };
  return html`
    <div ref=${box} class="token-text" role="listbox" tabindex="0" aria-label=${t('tokens.answer')} aria-activedescendant=${`${id}-${at}`} onKeyDown=${move}>
      ${tokens.map((token, place) => html`<span key=${place} id=${`${id}-${place}`} role="option" aria-selected=${place === at ? 'true' : 'false'}
        aria-label=${own(token).trim() ? null : t('tokens.blank')} class=${`token ${shade(token)}`} title=${percent(chance(token), 2)} onClick=${() => setAt(place)}>${visible(own(token))}</span>`)}
    </div>
    <${Table} bare=${false} name=${t('tokens.alternatives')} columns=${COLUMNS} rows=${alternatives(chosen)} keyOf=${row => row.id} />`;
}

const COLUMNS = [
  {label: t('tokens.token'), cell: row => html`<span class=${`token ${shade(row)}`}>${visible(row.text)}</span>${row.sampled && html` <span class="hint">${t('tokens.sampled')}</span>`}`},
  {label: t('tokens.probability'), number: true, cell: row => percent(chance(row), 2)},
];

// The likeliest tokens at the place of this one, and this one.
function alternatives(token) {
  const rows = token.top.map(each => ({...each, text: each.text || `#${each.id}`, sampled: each.id === token.id}));
  return rows.some(row => row.sampled) ? rows : [...rows, {...token, text: own(token), sampled: true}];
}
