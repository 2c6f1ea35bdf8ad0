// The parts of screens: tables, fields, dialogs, facts. They know no data and no address.
import {html, useEffect, useId, useRef} from './view.js';
import {t} from './words.js';

// A table by its name. A column is {key, label, number?, mono?, cell?}: `cell` draws a row's value. `isCurrent` marks rows.
export function Table({name, columns, rows, keyOf = (row, at) => at, bare = true, isCurrent = () => false}) {
  return html`<div class=${bare ? 'scroll bare' : 'scroll'} tabindex="0" role="group" aria-label=${t('parts.scrolls', {name})}>
    <table aria-label=${name}>
      <thead><tr>${columns.map(column => column.label ? html`<th scope="col" class=${kind(column)}>${column.label}</th>` : html`<td></td>`)}</tr></thead>
      <tbody>${rows.map((row, at) => html`<tr key=${keyOf(row, at)} aria-current=${isCurrent(row) ? 'true' : null}>
        ${columns.map(column => html`<td class=${kind(column)}>${column.cell ? column.cell(row) : row[column.key]}</td>`)}
      </tr>`)}</tbody>
    </table>
  </div>`;
}

const kind = column => [column.number && 'number', column.mono && 'mono'].filter(Boolean).join(' ');

// A part of a page with a heading; `name` is what it is found by.
export function Region({name, children}) {
  const id = useId();
  return html`<section class="card" aria-labelledby=${id}><h2 id=${id}>${name}</h2>${children}</section>`;
}

export function Facts({facts}) {
  return html`<dl>${facts.filter(([, value]) => value !== null && value !== undefined && value !== '')
    .map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}</dl>`;
}

export function Select({label, value, options, onChange, inline, ...rest}) {
  return html`<label class=${inline ? 'inline' : ''}>${label}
    <select value=${value} onChange=${event => onChange(event.target.value)} ...${rest}>
      ${options.map(option => {
        const [held, shown] = Array.isArray(option) ? option : [option, option];
        return html`<option key=${held} value=${held} selected=${held === value}>${shown}</option>`;
      })}
    </select></label>`;
}

export function Input({label, value, onInput, type = 'text', hint, class: kind = '', ...rest}) {
  const id = useId();
  return html`<label class=${kind}>${label}
    <input type=${type} value=${value} onInput=${event => onInput(event.target.value)} aria-describedby=${hint ? id : null} ...${rest} />
    ${hint && html`<span class="hint" id=${id}>${hint}</span>`}</label>`;
}

export function Checkbox({label, checked, onChange, ...rest}) {
  return html`<label class="inline"><input type="checkbox" checked=${checked} onChange=${event => onChange(event.target.checked)} ...${rest} />${label}</label>`;
}

// A dialog that is open while it is on the page; Escape calls `onClose`.
export function Dialog({title, onClose, children}) {
  const box = useRef();
  const id = useId();
  useEffect(() => {
    const before = document.activeElement;
    box.current.showModal();
    return () => document.activeElement === document.body && before?.focus?.();
  }, []);
  return html`<dialog ref=${box} aria-labelledby=${id} onClose=${onClose}>
    <h2 id=${id}>${title}</h2>${children}
  </dialog>`;
}

// Asks before what cannot be undone; `children` say what is lost.
export function Confirm({title, onClose, onConfirm, children}) {
  return html`<${Dialog} title=${title} onClose=${onClose}>
    <p>${children}</p>
    <div class="row">
      <button type="button" onClick=${onClose}>${t('parts.cancel')}</button>
      <button type="button" class="danger" onClick=${onConfirm}>${title}</button>
    </div>
  <//>`;
}

export const Empty = ({children}) => html`<p class="empty">${children}</p>`;
export const Tag = ({kind = '', children}) => html`<span class=${`tag ${kind}`}>${children}</span>`;
