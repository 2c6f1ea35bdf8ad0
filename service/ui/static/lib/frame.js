// The frame's own controls: theme and language, which cookies keep for the server's next frame, and the dialog "Go to".
import {ui} from './addresses.js';

function keep(name, value) {
  document.cookie = `dosirak_${name}=${value}; Path=${ui.pathname}; Max-Age=31536000; SameSite=Strict`;
}

document.getElementById('theme').addEventListener('change', event => {
  keep('theme', event.target.value);
  document.documentElement.dataset.theme = event.target.value;
});
document.getElementById('language').addEventListener('change', event => {
  keep('language', event.target.value);
  location.reload();
});

// The dialog is there from the first letter on, before the module that fills it: no key goes elsewhere meanwhile.
const dialog = document.getElementById('go-to-dialog');
const text = dialog.querySelector('input');
const places = () => import('./go-to.js');

async function open() {
  if (dialog.open) return;
  text.value = '';
  dialog.showModal();
  (await places()).show(text);
}

document.getElementById('go-to').addEventListener('click', open);
dialog.querySelector('form').addEventListener('submit', async event => {
  event.preventDefault();
  (await places()).go(text.value);
});
addEventListener('pagehide', () => dialog.close()); // else a page that is gone back to still shows it
addEventListener('keydown', event => {
  if ((event.ctrlKey || event.metaKey) && !event.shiftKey && event.key.toLowerCase() === 'k') {
    event.preventDefault();
    open();
  }
});

// A transition to a page that was prepared ahead may be aborted by the browser, which then tells a rejection that nobody
// can handle. The page itself is there.
addEventListener('unhandledrejection', event => {
  if (event.reason instanceof DOMException && event.reason.message.startsWith('Transition was')) event.preventDefault();
});
