import {html} from './view.js';
import {t} from './words.js';

// The functions that an answer calls, with what it gives them.
export function Calls({calls}) {
  return calls.length > 0 && html`<ul class="calls" aria-label=${t('message.calls')}>${calls.map(({id, function: {name, arguments: given}}) => html`<li key=${id}>
    <b>${name}</b> <code>${given}</code></li>`)}</ul>`;
}

// The name of the function of every call, by the call's id.
export const functionsOf = messages => new Map(messages.flatMap(({tool_calls: calls = []}) => calls.map(call => [call.id, call.function.name])));
