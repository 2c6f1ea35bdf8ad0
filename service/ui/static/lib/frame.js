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

const open = async () => (await import('./go-to.js')).open();
document.getElementById('go-to').addEventListener('click', open);
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
