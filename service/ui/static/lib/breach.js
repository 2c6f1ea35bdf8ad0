// Marks a version that breaks limits of the gate of an alias which points to it.
import {html} from './view.js';
import {Tag} from './parts.js';
import {t} from './words.js';

export const Breach = ({broken}) => broken.length > 0 && html`<span title=${broken.join('; ')}><${Tag} kind="bad">${t('gate.broken')}<//></span>`;
