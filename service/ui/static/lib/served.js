// The versions that can answer, the server's default first; those that are loaded are marked.
import {useEffect, useState} from './view.js';
import {ask} from './api.js';
import {fail} from './notice.js';
import {t} from './words.js';

// {all, options, loaded} as soon as they are known; `options` suit a Select.
export function useServed() {
  const [found, set] = useState({all: [], options: [], loaded: new Set(), known: false});
  useEffect(() => {
    Promise.all([ask(''), ask('v1/models'), ask('v1/deployments')]).then(([root, models, deployments]) => {
      const loaded = new Set(deployments.data.filter(each => each.state === 'ready').map(each => each.model));
      const others = models.data.map(each => each.id).filter(id => id.includes(':') && id !== root.model);
      const all = root.model ? [root.model, ...others] : others;
      set({all, loaded, known: true, options: all.map(each => [each, loaded.has(each) ? t('chat.loaded', {version: each}) : each])});
    }).catch(fail);
  }, []);
  return found;
}

// The options with one that an address or a session names, even where it is not there any more.
export const offered = ({all, options}, version) => !version || all.includes(version) ? options : [...options, [version, version]];
