// The clipboard.
import {say} from './notice.js';
import {t} from './words.js';

// Puts a text on the clipboard and says so; where the browser forbids it, the text can still be selected.
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    say(t('use.copied'));
  } catch {
    say(t('use.not_copied'));
  }
}
