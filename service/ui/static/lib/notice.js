// The two lines of every page that speak: status says what was done or found, alert what was refused.
import {t} from './words.js';

const status = document.getElementById('status');
const alert = document.getElementById('alert');

export function say(text) {
  status.textContent = text;
}

export function quiet() {
  alert.replaceChildren();
}

// The API's sentence with its request id; a request that this page ended itself says nothing.
export function fail(error) {
  if (error.name === 'AbortError') return;
  const lines = [error.status ? error.message : `${t('notice.unreachable')} ${error.message}`];
  alert.replaceChildren(lines[0]);
  if (error.requestId) {
    const small = document.createElement('small');
    small.textContent = t('notice.request', {status: error.status, id: error.requestId});
    alert.append(small);
  }
}

// Runs what a button does: an earlier refusal goes, a new one is shown. Returns whether it went well.
export async function attempt(work) {
  quiet();
  try {
    await work();
    return true;
  } catch (error) {
    fail(error);
    return false;
  }
}

// The same with a link behind the text.
export function sayLink(text, to, name) {
  const link = document.createElement('a');
  Object.assign(link, {href: to, textContent: name});
  status.replaceChildren(`${text} `, link);
}
