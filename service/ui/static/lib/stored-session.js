// A stored session as this page knows it, and changes to it. Each change names the revision that the page shows, so that
// an old page overwrites nothing.
import {useEffect, useState} from './view.js';
import {ask, askTagged, send} from './api.js';
import {attempt, fail, say} from './notice.js';

// {session, round, isOld, load, patch, remove}. `round` counts the loads; `isOld`: the last change was refused because the
// session has changed since.
export function useSession(here) {
  const [state, set] = useState({session: undefined, round: 0, isOld: false});
  const {session} = state;
  const load = async () => {
    const found = await ask(here);
    set(old => ({session: found, round: old.round + 1, isOld: false}));
  };
  useEffect(() => { load().catch(fail); }, []);
  const guarded = work => work({'If-Match': `"${session.revision}"`}).catch(error => {
    if (error.status === 412) set(old => ({...old, isOld: true}));
    throw error;
  });
  // `take` gets the answer; `told` is said. Where somebody else has changed the session too, it is loaded again.
  const patch = (path, body, take, told) => attempt(async () => {
    say('');
    const {data, tag} = await guarded(headers => askTagged(path, {method: 'PATCH', body, headers}));
    const revision = Number(/\d+/.exec(tag)?.[0]);
    take(data);
    set(old => ({...old, isOld: false, session: {...old.session, revision}}));
    if (revision !== session.revision + 1) await load();
    say(told);
  });
  const put = changed => set(old => ({...old, session: changed}));
  const remove = () => guarded(headers => send(here, {method: 'DELETE', headers}));
  return {...state, load, patch, put, remove};
}

// What a session is called: its title, else one that a client has put into the metadata, else its id.
export function nameOf({title, metadata, id}) {
  return title || (typeof metadata.title === 'string' && metadata.title) || id;
}
