// The page of an address that no screen has.
import {html} from '../lib/view.js';
import {pages} from '../lib/addresses.js';
import {mount} from '../lib/screen.js';
import {t} from '../lib/words.js';

mount(() => html`<p>${t('missing.text')}</p><p><a href=${pages.models()}>${t('title.models')}</a></p>`);
