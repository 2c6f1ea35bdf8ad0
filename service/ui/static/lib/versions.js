// The versions of a model to choose from, by pages, newest first.
import {html, useState} from './view.js';
import {ask, query} from './api.js';
import {repository} from './addresses.js';
import {attempt} from './notice.js';
import {Select} from './parts.js';
import {t} from './words.js';

// {versions, aliases, more, load}: `load()` asks for the first page, `more` says that there are older ones.
export function useVersions(model) {
  const [page, setPage] = useState();
  const load = async cursor => {
    const found = await ask(`${repository(model)}${query({cursor})}`);
    setPage(old => cursor && cursor !== old.next_cursor ? old : {...found, versions: cursor ? [...old.versions, ...found.versions] : found.versions});
    return found;
  };
  return {versions: page?.versions, aliases: page?.aliases, more: page?.next_cursor, load};
}

// A combobox of versions as {m}:{v}, with a button for older ones. The chosen one stays, whatever page it is of.
export function VersionSelect({label, model, known, options, value, onChange, ...rest}) {
  const all = options.includes(value) ? options : [...options, value];
  return html`<${Select} label=${label} value=${value} onChange=${onChange} options=${all.map(each => [each, `${model}:${each}`])} ...${rest} />
    ${known.more && html`<button type="button" onClick=${() => attempt(() => known.load(known.more))}>${t('model.older')}</button>`}`;
}
