// A token's text with its spaces made visible.
import {html} from './view.js';

const MARKS = {' ': 'space', '\n': 'line', '\t': 'tab', '\u3000': 'space', '\u00a0': 'space'};

// The marks are the style's: the text stays as it is.
export function visible(text) {
  return /\s/.test(text) ? text.split(/(\s)/).filter(Boolean).map(part => MARKS[part] ? html`<i class=${MARKS[part]}>${part}</i>` : part) : text;
}
